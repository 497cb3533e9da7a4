//! What a client has already, and under which conditions it wants something (RFC 9110, 13).

use crate::date;
use crate::head::Head;
use crate::site::File;

/// What the conditions of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The file is to be sent.
    Send,
    /// The client has it.
    NotModified,
    /// What the client relies on does not hold.
    Failed,
}

/// Judges a request's conditions for a file, in the order of RFC 9110, 13.2.2.
pub fn judge(head: &Head<'_>, file: &File) -> Outcome {
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

/// Whether a request's range is to be looked at: always, unless its client has another file's part (RFC 9110, 13.1.5).
pub fn range_applies(head: &Head<'_>, file: &File) -> bool {
    let Some(validator) = head.if_range else { return true };
    if validator.starts_with(b"\"") {
        return validator == file.tag().as_bytes();
    }
    file.modified().is_some() && date::parse(validator) == file.modified()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// A weak tag is like none.
    Strong,
    /// A weak tag is as good as any.
    Weak,
}

/// Whether a list of tags has `tag`, which is strong, or says that any will do.
fn names(list: &[u8], tag: &str, comparison: Comparison) -> bool {
    if list.trim_ascii() == b"*" {
        return true;
    }
    let mut rest = list;
    loop {
        rest = skip(rest);
        let (weak, quoted) = match rest.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        // A tag ends at its second quotation mark; there may be commas in it.
        let Some(inner) = quoted.strip_prefix(b"\"") else { return false };
        let Some(end) = inner.iter().position(|byte| *byte == b'"') else { return false };
        let counts = !weak || comparison == Comparison::Weak;
        if counts && quoted[..end + 2] == *tag.as_bytes() {
            return true;
        }
        rest = &inner[end + 1..];
    }
}

/// What is behind commas and white space.
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
        "two tags are the same weakly if their marks are, and strongly if neither is weak besides."
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
        for list in [&b""[..], b"5-ab", b"\"5-ab", b"\"5-a\"", b"x \"5-ab\"", b"w/\"5-ab\"", b",,,"] {
            assert!(!names(list, TAG, Comparison::Weak), "{list:?}");
        }
    }
}
