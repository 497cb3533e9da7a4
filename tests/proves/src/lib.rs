//! `#[proves("RFC 9293 3.8.6.1", "a shut window is probed")]`: a test's claim to prove a rule of an RFC.
//!
//! The attribute expands to the unchanged test. Compilation fails if the claim is malformed, or if the item below it is
//! not a test that every run contains: an edit cannot separate a claim from its test. `cargo xtask compliance`
//! generates `docs/compliance.md` from these attributes.

// The examples show the place of a claim: above a test.
#![allow(clippy::test_attr_in_doctest)]

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Claims that the test below proves a rule of an RFC: the RFC with its section, and the rule in a few words.
///
/// ```
/// use isola_proves::proves;
///
/// #[proves("RFC 9293 3.8.6.1", "a shut window is probed")]
/// #[test]
/// fn a_shut_window_is_probed() {}
/// ```
///
/// A claim above any other item does not compile:
///
/// ```compile_fail
/// # use isola_proves::proves;
/// #[proves("RFC 9293 3.8.6.1", "a shut window is probed")]
/// fn a_shut_window_is_probed() {}
/// ```
///
/// Nor does a claim above a test that some runs omit:
///
/// ```compile_fail
/// # use isola_proves::proves;
/// #[proves("RFC 9293 3.8.6.1", "a shut window is probed")]
/// #[test]
/// #[ignore = "takes long"]
/// fn a_shut_window_is_probed() {}
/// ```
///
/// Nor does a claim without a section, or without a rule:
///
/// ```compile_fail
/// # use isola_proves::proves;
/// #[proves("RFC 9293", "a shut window is probed")]
/// #[test]
/// fn a_shut_window_is_probed() {}
/// ```
///
/// ```compile_fail
/// # use isola_proves::proves;
/// #[proves("RFC 9293 3.8.6.1")]
/// #[test]
/// fn a_shut_window_is_probed() {}
/// ```
#[proc_macro_attribute]
pub fn proves(claim: TokenStream, item: TokenStream) -> TokenStream {
    match judge_claim(claim).and_then(|()| judge_item(item.clone())) {
        Ok(()) => item,
        Err(error) => {
            let message = TokenTree::Literal(proc_macro::Literal::string(&format!("#[proves]: {error}")));
            let mut tokens: TokenStream =
                "::core::compile_error!".parse().expect("a path and an exclamation mark");
            tokens.extend([TokenTree::Group(Group::new(Delimiter::Brace, message.into()))]);
            tokens.extend(item);
            tokens
        }
    }
}

fn judge_claim(claim: TokenStream) -> Result<(), String> {
    let form = || r#"the form is #[proves("RFC NUMBER SECTION", "rule")]"#.to_owned();
    let mut strings = Vec::new();
    for (place, token) in claim.into_iter().enumerate() {
        match token {
            TokenTree::Literal(literal) if place % 2 == 0 => strings.push(literal.to_string()),
            TokenTree::Punct(comma) if place % 2 == 1 && comma.as_char() == ',' => {}
            _ => return Err(form()),
        }
    }
    let unquoted: Vec<&str> =
        strings.iter().filter_map(|text| text.strip_prefix('"')?.strip_suffix('"')).collect();
    let [source, rule] = unquoted[..] else { return Err(form()) };
    let words: Vec<&str> = source.split(' ').collect();
    let ["RFC", number, section] = words[..] else { return Err(form()) };
    let is_part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric());
    if number.parse::<u32>().is_err() || !section.split('.').all(is_part) || rule.trim().is_empty() {
        return Err(form());
    }
    Ok(())
}

/// Checks the attributes below the claim, which an attribute macro sees unexpanded, and the keyword after them.
fn judge_item(item: TokenStream) -> Result<(), String> {
    let (mut is_test, mut is_ignored) = (false, false);
    let mut tokens = item.into_iter();
    loop {
        match tokens.next() {
            Some(TokenTree::Punct(punct)) if punct.as_char() == '#' => {
                let Some(TokenTree::Group(attribute)) = tokens.next() else { break };
                let words: Vec<String> =
                    attribute.stream().into_iter().map(|token| token.to_string()).collect();
                match words.first().map(String::as_str) {
                    Some("test") if words.len() == 1 => is_test = true,
                    Some("ignore" | "cfg" | "cfg_attr") => is_ignored = true,
                    _ => {}
                }
            }
            Some(TokenTree::Ident(word)) if word.to_string() == "fn" => break,
            Some(_) => return Err("the item below is not a test function".into()),
            None => break,
        }
    }
    match (is_test, is_ignored) {
        (true, false) => Ok(()),
        (true, true) => Err("the test below is not in every run: it proves nothing".into()),
        (false, _) => Err("the function below has no #[test] between the claim and itself".into()),
    }
}
