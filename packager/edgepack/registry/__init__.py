"""Puts bundles into OCI registries and buckets, moves channels, and gets bundles from there.

:mod:`.reference` reads addresses, :mod:`.credentials` what podman and docker keep of the user, and
:mod:`.repository` speaks the OCI distribution protocol. :mod:`.bucket` has the same methods over an
S3 store. :mod:`.artifact` is pure and says how a bundle
lies in a registry; :mod:`.publishing` writes it there, :mod:`.channels` its channels, and
:mod:`.fetching` reads it, believing nothing that it has not hashed.
"""
