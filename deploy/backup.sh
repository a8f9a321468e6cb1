#!/bin/bash
# `backup.sh` copies all that the servers hold to a new folder of $BACKUPS while they run;
# `backup.sh restore NAME` fills empty servers from it. compose.yaml has both as a service.
#
# The databases are copied before the objects: whatever they name is then among the objects.
set -euo pipefail
umask 077

databases="prefect mlflow labels"

fail() {
    echo "$0: $*" >&2
    exit 2
}

back_up() {
    local name folder
    name=$(date -u +%Y-%m-%dT%H-%M-%SZ)
    folder=$BACKUPS/$name
    [ ! -e "$folder" ] || fail "$folder exists already"
    rm -rf "$BACKUPS"/.part.*
    local part="$BACKUPS/.part.$name"
    mkdir "$part"
    for each in $databases; do
        pg_dump --username postgres --format custom --file "$part/$each.dump" "$each"
    done
    if [ -d "$RLHF_DATA/branches.git" ]; then
        # Branches before the commits that they name: a push may come in between.
        archive --create "$part/branches.tar" "$RLHF_DATA" --exclude=branches.git/objects branches.git
        archive --append "$part/branches.tar" "$RLHF_DATA" branches.git/objects
    fi
    archive --create "$part/objects.tar" "$OBJECTS" .
    (cd "$part" && sha256sum -- * > SHA256SUMS)
    sync --file-system "$part" # A folder's name alone would flush its list of names.
    mv "$part" "$folder"
    echo "$folder: $(du -sh "$folder" | cut -f1)"
}

# The store keeps what it knows of an object in extended attributes. 1: a file changed meanwhile,
# which is one that is being written, and that no database names yet.
archive() {
    local code=0
    tar "$1" --xattrs --xattrs-include='user.*' --file "$2" --directory "$3" "${@:4}" || code=$?
    [ "$code" -le 1 ] || fail "tar ended with $code over $3"
}

restore() {
    local folder=$BACKUPS/$1 tables
    [ -f "$folder/SHA256SUMS" ] || fail "$folder: no whole backup"
    (cd "$folder" && sha256sum --check --quiet SHA256SUMS) || fail "$folder: damaged"
    for each in $databases; do
        tables=$(psql --username postgres --no-align --tuples-only --dbname "$each" --command \
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        [ "$tables" = 0 ] || fail "the database $each holds $tables tables; restore to empty servers"
    done
    [ -z "$(find "$OBJECTS" -type f -print -quit)" ] || fail "$OBJECTS holds objects already"
    [ ! -e "$RLHF_DATA/branches.git" ] || fail "$RLHF_DATA/branches.git exists already"
    for each in $databases; do
        pg_restore --username postgres --exit-on-error --single-transaction --dbname "$each" \
            "$folder/$each.dump"
    done
    tar --extract --xattrs --xattrs-include='user.*' --file "$folder/objects.tar" \
        --directory "$OBJECTS"
    if [ -f "$folder/branches.tar" ]; then
        tar --extract --file "$folder/branches.tar" --directory "$RLHF_DATA"
        # A volume that nobody has used yet belongs to root, as we do.
        [ "$(id -u)" != 0 ] || chown --reference="$RLHF_DATA/branches.git" "$RLHF_DATA"
    fi
    echo "restored from $folder"
}

case "${1:-}" in
    "") back_up ;;
    restore) [ $# = 2 ] || fail "expected restore NAME"; restore "$2" ;;
    *) fail "expected nothing, or restore NAME; found $*" ;;
esac
