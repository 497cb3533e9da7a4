//! The code of a file, without the parts that take no part in a figure: comments, documentation, unit tests and models.

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

/// Returns whether two versions of a Rust file contain the same code. Layout, comments, documentation, and modules that
/// only a build of tests or of loom's models contains do not count. A version that is not Rust has no code equal to
/// another's.
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
        if let Some(after) = documentation(rest).or_else(|| unmeasured_module(rest)) {
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

/// Returns the tokens behind a module that no measured build contains, `None` if `trees` begins with something else.
fn unmeasured_module(trees: &[TokenTree]) -> Option<&[TokenTree]> {
    let (content, mut after) = attribute(trees)?;
    let is_unmeasured = match content.as_slice() {
        [TokenTree::Ident(name), TokenTree::Group(condition)] => {
            name == "cfg" && holds_when_measured(condition.stream()) == Some(false)
        }
        _ => false,
    };
    if !is_unmeasured {
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

/// Returns whether a condition of `cfg` holds in the builds that are measured, which are neither tests nor loom's
/// models; `None` if that depends on other conditions.
fn holds_when_measured(condition: TokenStream) -> Option<bool> {
    let trees: Vec<TokenTree> = condition.into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(name)] if name == "test" || name == "loom" => Some(false),
        [TokenTree::Ident(name), TokenTree::Group(list)] => {
            let trees: Vec<TokenTree> = list.stream().into_iter().collect();
            let is_comma =
                |tree: &TokenTree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ',');
            let parts = trees.split(is_comma).filter(|part| !part.is_empty());
            let parts: Vec<Option<bool>> =
                parts.map(|part| holds_when_measured(part.iter().cloned().collect())).collect();
            match name.to_string().as_str() {
                "all" if parts.contains(&Some(false)) => Some(false),
                "all" if parts.iter().all(|part| *part == Some(true)) => Some(true),
                "any" if parts.contains(&Some(true)) => Some(true),
                "any" if parts.iter().all(|part| *part == Some(false)) => Some(false),
                "not" => parts.first().copied().flatten().map(|holds| !holds),
                _ => None,
            }
        }
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
    fn modules_that_no_measured_build_contains_do_not_count() {
        let is_same = |condition: &str| {
            is_same_rust(CODE, &format!("{CODE}#[cfg({condition})]\nmod models {{ fn x() {{}} }}\n"))
        };
        for unmeasured in [
            "loom",
            "all(test, loom)",
            "all(test, not(loom))",
            "all(loom, target_os = \"linux\")",
            "any(test, loom,)",
            "not(not(test))",
            "not(any(not(test), feature = \"x\"))",
        ] {
            assert!(is_same(unmeasured), "{unmeasured}");
        }
        for measured in [
            "not(loom)",
            "not(test)",
            "all(not(loom), not(test))",
            "any(loom, not(test))",
            "any(test, feature = \"x\")",
            "all(not(loom), feature = \"x\")",
            "feature = \"loom\"",
            "debug_assertions",
        ] {
            assert!(!is_same(measured), "{measured}");
        }
        assert!(
            !is_same_rust(CODE, &format!("{CODE}#[cfg(loom)]\nfn x() {{}}\n")),
            "only modules are left out"
        );
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
