//! The code of a file, without the parts that take no part in a figure: comments, documentation and unit tests.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::Path;

/// Returns whether two versions of the file at `path` contain the same code. Files other than Rust, shell scripts and
/// configurations count as a whole.
pub fn is_same(path: &Path, before: &str, after: &str) -> bool {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => is_same_rust(before, after),
        Some("sh" | "conf") => lines(before).eq(lines(after)),
        _ => before == after,
    }
}

/// Returns the lines of a script that are neither empty nor comments.
fn lines(script: &str) -> impl Iterator<Item = &str> {
    script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && (!line.starts_with('#') || line.starts_with("#!")))
}

/// Returns whether two versions of a Rust file contain the same code. Layout, comments, documentation and modules under
/// `#[cfg(test)]` do not count. A version that is not Rust has no code equal to another's.
fn is_same_rust(before: &str, after: &str) -> bool {
    match (before.parse(), after.parse()) {
        (Ok(before), Ok(after)) => code(before) == code(after),
        _ => false,
    }
}

/// Returns the tokens that count, one a line.
fn code(stream: TokenStream) -> String {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut code = String::new();
    let mut rest = trees.as_slice();
    while let Some((first, after)) = rest.split_first() {
        if let Some(after) = documentation(rest).or_else(|| test_module(rest)) {
            rest = after;
            continue;
        }
        match first {
            TokenTree::Group(group) => {
                code.push_str(&format!("{:?}\n", group.delimiter()));
                code.push_str(&self::code(group.stream()));
                code.push_str("end\n");
            }
            other => code.push_str(&format!("{other}\n")),
        }
        rest = after;
    }
    code
}

/// Returns the tokens behind a documentation attribute, `None` if `trees` begins with something else. The parser turns
/// each documentation comment into such an attribute.
fn documentation(trees: &[TokenTree]) -> Option<&[TokenTree]> {
    let (content, after) = attribute(trees)?;
    let is_doc =
        matches!(content.as_slice(), [TokenTree::Ident(name), TokenTree::Punct(_), ..] if name == "doc");
    is_doc.then_some(after)
}

/// Returns the tokens behind a module under `#[cfg(test)]`, `None` if `trees` begins with something else.
fn test_module(trees: &[TokenTree]) -> Option<&[TokenTree]> {
    let (content, mut after) = attribute(trees)?;
    let is_test = match content.as_slice() {
        [TokenTree::Ident(name), TokenTree::Group(condition)] => {
            name == "cfg" && condition.stream().to_string() == "test"
        }
        _ => false,
    };
    if !is_test {
        return None;
    }
    while let Some((_, behind)) = attribute(after) {
        after = behind;
    }
    let is_visibility = |tree: &TokenTree| match tree {
        TokenTree::Ident(word) => word == "pub",
        TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
        _ => false,
    };
    while after.first().is_some_and(is_visibility) {
        after = &after[1..];
    }
    match after {
        [TokenTree::Ident(word), TokenTree::Ident(_), _body, after @ ..] if word == "mod" => Some(after),
        _ => None,
    }
}

/// Returns the content of the attribute with which `trees` begins, and the tokens behind it.
fn attribute(trees: &[TokenTree]) -> Option<(Vec<TokenTree>, &[TokenTree])> {
    let is = |tree: &TokenTree, mark| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == mark);
    let (hash, after) = trees.split_first()?;
    if !is(hash, '#') {
        return None;
    }
    let after = match after.split_first() {
        Some((bang, behind)) if is(bang, '!') => behind,
        _ => after,
    };
    match after.split_first()? {
        (TokenTree::Group(group), after) if group.delimiter() == Delimiter::Bracket => {
            Some((group.stream().into_iter().collect(), after))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "//! A file.\n\n/// Adds.\nfn add(a: u8) -> u8 {\n    a + 1 // one\n}\n";

    #[test]
    fn comments_and_layout_do_not_count() {
        for same in [
            "fn add(a: u8) -> u8 { a + 1 }",
            "/* a\n /* nested */ */ fn add(\n    a: u8\n) -> u8 {\n    a\n        + 1\n}",
            "//! Another text.\n#![doc = \"x\"]\nfn add(a: u8) -> u8 { a + 1 }",
        ] {
            assert!(is_same_rust(CODE, same), "{same}");
        }
    }

    #[test]
    fn test_modules_do_not_count() {
        let module = "\n#[cfg(test)]\n#[path = \"x.rs\"]\npub(crate) mod tests { fn x() {} }\n";
        assert!(is_same_rust(CODE, &(CODE.to_owned() + module)));
        assert!(is_same_rust(CODE, &(CODE.to_owned() + "#[cfg(test)]\nmod tests;\n")));
        assert!(!is_same_rust(CODE, &(CODE.to_owned() + "#[cfg(not(test))]\nmod tests;\n")));
        assert!(!is_same_rust(CODE, &(CODE.to_owned() + "mod tests { fn x() {} }\n")));
    }

    #[test]
    fn comments_of_scripts_do_not_count() {
        let is_same = |path: &str, after| is_same(Path::new(path), "#!/bin/sh\n# One.\nrun a\n", after);
        assert!(is_same("x.sh", "#!/bin/sh\n\n  # Two.\nrun a\n"));
        assert!(!is_same("x.sh", "#!/bin/bash\nrun a\n"));
        assert!(!is_same("x.sh", "#!/bin/sh\nrun b\n"));
        assert!(!is_same("x.c", "#!/bin/sh\nrun a\n"), "a file of another kind counts as a whole");
    }

    #[test]
    fn other_tokens_count() {
        for other in [
            "fn add(a: u8) -> u8 { a + 2 }",
            "#[inline]\nfn add(a: u8) -> u8 { a + 1 }",
            "fn add(a: u8) -> u8 { (a + 1) }",
            "fn add(a: u8) -> u8 { a + 1 } const TEXT: &str = \"// 1\";",
        ] {
            assert!(!is_same_rust(CODE, other), "{other}");
        }
        let text = |text| format!("const TEXT: &str = {text:?};");
        assert!(!is_same_rust(&text("// 1"), &text("// 2")), "the text of a literal is code");
        assert!(!is_same_rust("fn {", "fn {"), "not Rust");
    }
}
