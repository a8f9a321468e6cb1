"""Makes the buckets of compose.yaml where they are missing: `python deploy/buckets.py NAME ...`.

The address and the keys of the store are those of boto3's environment (`AWS_...`).
"""

import sys

import boto3

store = boto3.client("s3")
known = {bucket["Name"] for bucket in store.list_buckets()["Buckets"]}
for name in sys.argv[1:]:
    if name not in known:
        store.create_bucket(Bucket=name)
