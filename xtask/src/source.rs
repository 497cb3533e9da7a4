//! Rust source as tokens, so that comments and strings do not count as code.

use std::path::Path;
use std::str::FromStr;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

use crate::error::Error;
use crate::workspace;

/// An identifier with a following parenthesised or bracketed group: `allow(unsafe_code)`.
pub struct Call {
    /// The identifier.
    pub name: String,
    /// The line of the identifier, from 1.
    pub line: usize,
    /// The tokens in the parentheses.
    pub arguments: TokenStream,
}

/// Reads the Rust file at `path` into tokens.
///
/// # Errors
/// [`Error::Read`], or [`Error::Lex`] if it does not lex.
pub fn tokens(path: &Path) -> Result<TokenStream, Error> {
    TokenStream::from_str(&workspace::read(path)?).map_err(|_| Error::Lex { path: path.to_owned() })
}

/// Returns all identifiers in `stream`, at any depth.
pub fn idents(stream: TokenStream) -> Vec<Ident> {
    let mut found = Vec::new();
    visit(stream, &mut |trees| {
        found.extend(trees.iter().filter_map(|tree| match tree {
            TokenTree::Ident(ident) => Some(ident.clone()),
            _ => None,
        }));
    });
    found
}

/// Returns all [`Call`]s of one of `names` in `stream`, at any depth, including `name!(...)`.
pub fn calls(stream: TokenStream, names: &[&str]) -> Vec<Call> {
    let mut found = Vec::new();
    visit(stream, &mut |trees| {
        for (at, tree) in trees.iter().enumerate() {
            let TokenTree::Ident(ident) = tree else { continue };
            let name = ident.to_string();
            if !names.contains(&name.as_str()) {
                continue;
            }
            let mut rest = trees[at + 1..].iter();
            let mut next = rest.next();
            if matches!(next, Some(TokenTree::Punct(punct)) if punct.as_char() == '!') {
                next = rest.next();
            }
            if let Some(TokenTree::Group(group)) = next
                && group.delimiter() != Delimiter::Brace
            {
                let line = ident.span().start().line;
                found.push(Call { name, line, arguments: group.stream() });
            }
        }
    });
    found
}

/// Calls `visitor` with the trees of `stream` and of every group in it.
fn visit(stream: TokenStream, visitor: &mut impl FnMut(&[TokenTree])) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    visitor(&trees);
    for tree in trees {
        if let TokenTree::Group(group) = tree {
            visit(group.stream(), visitor);
        }
    }
}
