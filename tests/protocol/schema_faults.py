"""Declarations that must be refused: (words of the refusal, what declares it)."""

from collections.abc import Callable

from plog.protocol.schema import DEFAULT, Int8, Int32, Records, String, Struct, field, message


class Plain(Struct):
    number: Int32 = field("Required.")


class Whole(Struct):
    number: Int32 = field("With a default.", default=0)


def tags_overlap() -> None:
    class Bad(Struct):
        a: Int32 = field("A.", default=0, tag=0)
        b: Int32 = field("B.", default=0, tag=0)


def tags_have_a_gap() -> None:
    class Bad(Struct):
        a: Int32 = field("A.", default=0, tag=0)
        b: Int32 = field("B.", default=0, tag=2)


def lower_tag_is_younger() -> None:
    class Bad(Struct):
        a: Int32 = field("A.", versions="3+", default=0, tag=0)
        b: Int32 = field("B.", versions="1+", default=0, tag=1)


def tagged_without_tag() -> None:
    class Bad(Struct):
        a: Int32 = field("A.", default=0, tagged="1+")


def no_wire_type() -> None:
    class Bad(Struct):
        a: int = field("A.")


def lists_of_lists() -> None:
    class Bad(Struct):
        a: list[list[Int32]] = field("A.")


def union() -> None:
    class Bad(Struct):
        a: Int32 | String = field("A.")


def null_without_versions() -> None:
    class Bad(Struct):
        a: String | None = field("A.")


def versions_without_null() -> None:
    class Bad(Struct):
        a: String = field("A.", nullable="1+")


def default_of_another_type() -> None:
    class Bad(Struct):
        a: Int32 = field("A.", default="0")


def default_out_of_range() -> None:
    class Bad(Struct):
        a: Int8 = field("A.", default=128)


def null_default_of_what_has_no_null() -> None:
    class Bad(Struct):
        a: String = field("A.", default=None)


def annotation_without_field() -> None:
    class Bad(Struct):
        a: Int32 = field("A.")
        b: Int32


def default_structure_with_required_field() -> None:
    class Bad(Struct):
        a: Plain = field("A.", default=DEFAULT)


def null_before_it_exists() -> None:
    @message(versions="0-3")
    class Bad(Struct):
        a: String | None = field("A.", versions="2+", nullable="1+", default=None)


def tag_before_flexible() -> None:
    @message(versions="0-3", flexible="2+")
    class Bad(Struct):
        a: Int32 = field("A.", versions="1+", default=0, tag=0)


def tag_in_inflexible_message() -> None:
    @message(versions="0-3")
    class Bad(Struct):
        a: Int32 = field("A.", default=0, tag=0)


def beyond_all_versions() -> None:
    class Inside(Struct):
        a: Int32 = field("A.", versions="4+", default=0)

    @message(versions="0-3")
    class Bad(Struct):
        inside: Inside = field("Holds it.")


def flexible_beyond_versions() -> None:
    @message(versions="0-3", flexible="4+")
    class Bad(Struct):
        a: Int32 = field("A.")


def open_versions() -> None:
    @message(versions="0+")
    class Bad(Struct):
        a: Int32 = field("A.")


def structure_missing_in_some_version() -> None:
    @message(versions="0-3")
    class Bad(Struct):
        a: Whole = field("A.", versions="1+")


def versions_with_a_gap() -> None:
    @message(versions="0-1,3")
    class Bad(Struct):
        a: Int32 = field("A.")


def null_integer() -> None:
    class Bad(Struct):
        a: Int32 | None = field("A.", nullable="0+")


def records_in_a_tag() -> None:
    class Bad(Struct):
        a: Records = field("A.", default=DEFAULT, tag=0)


FAULTS: list[tuple[str, Callable[[], None]]] = [
    ("gaps or overlap", tags_overlap),
    ("gaps or overlap", tags_have_a_gap),
    ("tag 1 is older than tag 0", lower_tag_is_younger),
    ("without a tag", tagged_without_tag),
    ("no wire type", no_wire_type),
    ("no wire type", lists_of_lists),
    ("no wire type", union),
    ("nullable", null_without_versions),
    ("nullable", versions_without_null),
    ("no default of type int32", default_of_another_type),
    ("no default of type int8", default_out_of_range),
    ("no default of type string", null_default_of_what_has_no_null),
    ("'b'.* lack type or field", annotation_without_field),
    ("has no default to share", default_structure_with_required_field),
    ("nullable", null_before_it_exists),
    ("where no tags are", tag_before_flexible),
    ("where no tags are", tag_in_inflexible_message),
    ("is in no version 0-3", beyond_all_versions),
    ("flexible 4", flexible_beyond_versions),
    ("versions 0", open_versions),
    ("default=DEFAULT", structure_missing_in_some_version),
    ("no range of versions", versions_with_a_gap),
    ("has no null", null_integer),
    ("records", records_in_a_tag),
]
