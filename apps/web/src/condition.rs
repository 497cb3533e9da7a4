//! Conditional requests (RFC 9110, 13).

use crate::date::{self, UnixSeconds};
use crate::head::Head;
use crate::site::File;

/// The validators of a file's version (RFC 9110, 8.8).
pub trait Validators {
    /// Returns the entity tag with its quotation marks, after `W/` if it is weak.
    fn tag(&self) -> &str;

    /// Returns the time of its last change, if that is known.
    fn modified(&self) -> Option<UnixSeconds>;
}

impl Validators for File {
    #[inline]
    fn tag(&self) -> &str {
        self.tag()
    }

    #[inline]
    fn modified(&self) -> Option<UnixSeconds> {
        self.modified()
    }
}

/// The result of a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send the file.
    Send,
    /// The client has the file already.
    NotModified,
    /// A precondition does not hold.
    Failed,
}

/// Evaluates a request's conditions for a file, in the order of RFC 9110, 13.2.2.
pub fn evaluate(head: &Head<'_>, file: &impl Validators) -> Outcome {
    if let Some(tags) = head.if_match {
        if !names(tags, file.tag(), Comparison::Strong) {
            return Outcome::Failed;
        }
    } else if let Some(limit) = head.if_unmodified_since.and_then(date::parse)
        && file.modified().is_some_and(|modified| modified > limit)
    {
        return Outcome::Failed;
    }
    if let Some(tags) = head.if_none_match {
        if names(tags, file.tag(), Comparison::Weak) {
            return Outcome::NotModified;
        }
    } else if let Some(limit) = head.if_modified_since.and_then(date::parse)
        && file.modified().is_some_and(|modified| modified <= limit)
    {
        return Outcome::NotModified;
    }
    Outcome::Send
}

/// Returns whether a request's range applies: always, unless `If-Range` refers to another version of the file (RFC
/// 9110, 13.1.5).
pub fn range_applies(head: &Head<'_>, file: &impl Validators) -> bool {
    let Some(validator) = head.if_range else { return true };
    if validator.starts_with(b"\"") {
        return validator == file.tag().as_bytes();
    }
    file.modified().is_some() && date::parse(validator) == file.modified()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// A weak tag never matches.
    Strong,
    /// A weak tag matches like a strong one.
    Weak,
}

/// Returns whether a list of tags contains `tag`, or is `*`.
fn names(list: &[u8], tag: &str, comparison: Comparison) -> bool {
    if list.trim_ascii() == b"*" {
        return true;
    }
    let tag = match (tag.strip_prefix("W/"), comparison) {
        (Some(_), Comparison::Strong) => return false,
        (Some(opaque), Comparison::Weak) => opaque,
        (None, _) => tag,
    };
    let mut rest = list;
    loop {
        rest = skip(rest);
        let (weak, quoted) = match rest.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        // A tag ends at its second quotation mark and may contain commas.
        let Some(inner) = quoted.strip_prefix(b"\"") else { return false };
        let Some(end) = inner.iter().position(|byte| *byte == b'"') else { return false };
        let counts = !weak || comparison == Comparison::Weak;
        if counts && quoted[..end + 2] == *tag.as_bytes() {
            return true;
        }
        rest = &inner[end + 1..];
    }
}

/// Skips commas and white space.
fn skip(list: &[u8]) -> &[u8] {
    let start = list.iter().position(|byte| !matches!(byte, b',' | b' ' | b'\t'));
    start.map_or(&[], |start| &list[start..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    const TAG: &str = "\"5-ab\"";

    #[proves(
        "RFC 9110 8.8.3.2",
        "two tags match weakly if their values are equal, and strongly if in addition neither is weak."
    )]
    #[test]
    fn a_tag_is_found_in_a_list() {
        for list in [&b"\"5-ab\""[..], b"*", b" * ", b"\"x\", \"5-ab\"", b"\"a,b\",\"5-ab\"", b",, \"5-ab\""]
        {
            assert!(names(list, TAG, Comparison::Strong), "{list:?}");
        }
        assert!(names(b"W/\"5-ab\"", TAG, Comparison::Weak));
        assert!(names(b"W/\"x\", W/\"5-ab\"", TAG, Comparison::Weak));
        assert!(!names(b"W/\"5-ab\"", TAG, Comparison::Strong));
        let weak = "W/\"5-ab\"";
        assert!(names(b"\"5-ab\"", weak, Comparison::Weak) && names(weak.as_bytes(), weak, Comparison::Weak));
        assert!(!names(b"\"5-ab\"", weak, Comparison::Strong) && names(b"*", weak, Comparison::Strong));
        for list in [&b""[..], b"5-ab", b"\"5-ab", b"\"5-a\"", b"x \"5-ab\"", b"w/\"5-ab\"", b",,,"] {
            assert!(!names(list, TAG, Comparison::Weak), "{list:?}");
        }
    }
}
