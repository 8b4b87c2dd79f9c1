"""What registries hold of bundles and of what refers to them, as JSON.

Sources: the OCI image specification 1.1 (manifest.md, image-index.md, descriptor.md). Manifests of
other tools may have more than is read here. No document of more than :data:`MOST_BYTES` is read, so
that nothing here needs a limit of its own.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from edgepack.errors import RegistryError

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
TITLE = "org.opencontainers.image.title"
MOST_BYTES = 4 << 20
"""The largest manifest: what registries take at least (distribution-spec, "Pushing Manifests")."""

Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class _Document(BaseModel):
    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    def encode(self) -> bytes:
        """Return the bytes; the same content gives the same."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


class Descriptor(_Document):
    """What leads to a blob or a manifest."""

    media_type: Annotated[str, Field(max_length=255)]
    digest: Digest
    size: Annotated[int, Field(ge=0, lt=1 << 50)]
    artifact_type: Annotated[str, Field(max_length=255)] | None = None
    """Of a manifest, in a list of them."""
    annotations: dict[str, str] | None = None

    @property
    def title(self) -> str:
        """The path of the file; empty if it has none."""
        return (self.annotations or {}).get(TITLE, "")


class ImageManifest(_Document):
    """What a tag or digest leads to."""

    schema_version: Literal[2] = 2
    media_type: Literal["application/vnd.oci.image.manifest.v1+json"] = MANIFEST_TYPE
    artifact_type: Annotated[str, Field(max_length=255)] | None = None
    config: Descriptor
    layers: list[Descriptor]
    subject: Descriptor | None = None
    """What this one refers to."""
    annotations: dict[str, str] | None = None

    def find_layer(self, title: str) -> Descriptor | None:
        """Return the layer of a path, if there is one."""
        return next((layer for layer in self.layers if layer.title == title), None)


class Index(_Document):
    """A list of manifests: what refers to a manifest.

    Others may list what is not read here, as with digests of sha512: it is kept and not looked at.
    """

    schema_version: Literal[2] = 2
    media_type: Literal["application/vnd.oci.image.index.v1+json"] = INDEX_TYPE
    manifests: list[Descriptor | dict[str, JsonValue]] = []

    @property
    def descriptors(self) -> list[Descriptor]:
        """Those that are read here."""
        return [each for each in self.manifests if isinstance(each, Descriptor)]


class Tags(_Document):
    """A page of a repository's tags."""

    tags: list[Annotated[str, Field(max_length=128)]] | None


DocumentT = TypeVar("DocumentT", bound=_Document)


def parse(model: type[DocumentT], content: bytes, what: str, where: str) -> DocumentT:
    """Return a document that a registry has sent.

    Args:
        model: What it should be.
        content: Its bytes.
        what: What it is, for the error: ``manifest``.
        where: Its address.

    Raises:
        RegistryError: It is no such document.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RegistryError(
            f"the registry's {what} is none that is known here: {place}: {first['msg']}",
            hint="look at what it is: skopeo inspect --raw; 'edgepack publish' writes bundles",
            where=where,
        ) from error
