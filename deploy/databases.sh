#!/bin/bash
# Run by PostgreSQL's image over an empty volume: a role and a database for each service.
set -euo pipefail

for name in prefect mlflow labels; do
    password="${name^^}_DB_PASSWORD"
    psql --quiet --username postgres --set=ON_ERROR_STOP=1 \
        --set=name="$name" --set=password="${!password:?}" <<'SQL'
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE ALL ON DATABASE :"name" FROM PUBLIC;
SQL
done
