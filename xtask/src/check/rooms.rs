//! The rooms of a crate: folders of its source that meet at their doors only.
//!
//! The door of a room is the `mod.rs` of its folder; what it exports is all that other rooms may use. [`CRATES`] has the
//! rooms of each divided crate, with the rooms that each may use. A file outside of these rooms may only be the root of
//! the crate.
//!
//! The check reads paths that begin with `crate` or `super`. A path to another room must name an item of its door, in a
//! direction of the table; a path to an item that the crate's root exports hides its room, and is rejected. Unit tests
//! are not exempt. The directions form no circle.

use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{Check, Findings};
use crate::error::Error;
use crate::source;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "rooms",
    about: "the parts of a divided crate use each other through their doors, in the permitted directions",
    remedy: "export the item from the mod.rs of its room and name it there; or move it to the room that needs it; a new \
             direction or room is a line in xtask/src/check/rooms.rs",
    run,
};

/// A room, and the rooms that its files may use.
struct Room {
    folder: &'static str,
    uses: &'static [&'static str],
}

/// A crate that is divided into rooms.
struct DividedCrate {
    /// The folder of its source.
    source: &'static str,
    rooms: &'static [Room],
}

const CRATES: &[DividedCrate] = &[DividedCrate {
    source: "net/stack/src",
    rooms: &[
        Room { folder: "base", uses: &[] },
        Room { folder: "ip", uses: &["base"] },
        Room { folder: "configuration", uses: &["base", "ip"] },
        Room { folder: "steering", uses: &["base", "ip", "configuration"] },
        Room { folder: "udp", uses: &["base", "ip", "steering"] },
        Room { folder: "tcp", uses: &["base", "ip", "steering"] },
        Room { folder: "stack", uses: &["base", "ip", "configuration", "steering", "udp", "tcp"] },
    ],
}];

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let files = workspace.files_ending_in(&["rs"])?;
    let mut failures = Vec::new();
    for divided in CRATES {
        failures.extend(divided.circles());
        let within = |path: &Path| {
            let relative = workspace.relative(path);
            Some(relative.strip_prefix(divided.source)?.strip_prefix('/')?.to_owned())
        };
        let modules: Vec<String> = files.iter().filter_map(|path| within(path)).collect();
        for (path, file) in files.iter().filter_map(|path| Some((path, within(path)?))) {
            failures.extend(divided.judge(&file, source::tokens(path)?, &modules));
        }
    }
    Ok(Findings::of(failures))
}

impl DividedCrate {
    fn room(&self, name: &str) -> Option<&Room> {
        self.rooms.iter().find(|room| room.folder == name)
    }

    /// Returns the violations of a file, whose path is relative to the source folder. `files` are all files of the
    /// crate.
    fn judge(&self, file: &str, tokens: TokenStream, files: &[String]) -> Vec<String> {
        let place = format!("{}/{file}", self.source);
        let Some((folder, rest)) = file.split_once('/') else {
            let is_root = ["lib.rs", "main.rs"].contains(&file);
            return if is_root { Vec::new() } else { vec![format!("{place} is in no room")] };
        };
        let Some(room) = self.room(folder) else {
            return vec![format!("{place} is in {folder}, which is no room")];
        };
        let mut paths = Vec::new();
        collect(tokens, depth_of(rest), &mut paths);
        paths
            .iter()
            .filter_map(|path| {
                self.judge_path(room, path, files).map(|why| format!("{place}:{}: {why}", path.line))
            })
            .collect()
    }

    /// Returns the violation of a path in a file of `room`, if any.
    fn judge_path(&self, room: &Room, path: &CratePath, files: &[String]) -> Option<String> {
        let whole = path.segments.join("::");
        let (first, rest) = path.segments.split_first()?;
        let Some(target) = self.room(first) else {
            return Some(format!("crate::{whole} hides its room; name it as an item of its room's door"));
        };
        if target.folder == room.folder {
            return None;
        }
        if !room.uses.contains(&target.folder) {
            let uses = if room.uses.is_empty() { "no other".into() } else { room.uses.join(", ") };
            return Some(format!("crate::{whole}: {} may use {uses}", room.folder));
        }
        let inner = rest.first()?;
        let is_module = [format!("{first}/{inner}.rs"), format!("{first}/{inner}/mod.rs")];
        let is_deep = is_module.iter().any(|module| files.contains(module));
        is_deep.then(|| format!("crate::{whole} reaches behind the door of {first}"))
    }

    /// Returns the rooms that use each other, directly or by way of others.
    fn circles(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (at, room) in self.rooms.iter().enumerate() {
            for other in &self.rooms[..at] {
                let (a, b) = (room.folder, other.folder);
                if self.reaches(a, b) && self.reaches(b, a) {
                    found.push(format!("{}: {b} and {a} use each other", self.source));
                }
            }
        }
        found
    }

    /// Returns whether a room uses another one, directly or by way of others.
    fn reaches(&self, from: &str, to: &str) -> bool {
        let mut open = vec![from];
        let mut seen = Vec::new();
        while let Some(next) = open.pop() {
            for used in self.room(next).into_iter().flat_map(|room| room.uses) {
                if *used == to {
                    return true;
                }
                if !seen.contains(used) {
                    seen.push(*used);
                    open.push(*used);
                }
            }
        }
        false
    }
}

/// Returns the number of modules around a file's own below the crate's root, for its path within its room.
fn depth_of(rest: &str) -> usize {
    let parts = rest.split('/').count();
    if rest == "mod.rs" || rest.ends_with("/mod.rs") { parts } else { parts + 1 }
}

/// A path from the crate's root. Paths within the file's room that begin with `super` are left out.
#[derive(Debug, PartialEq, Eq)]
struct CratePath {
    segments: Vec<String>,
    line: usize,
}

/// Collects the paths in `tokens` that begin with `crate`, or leave the crate's rooms by `super`. `depth` is the number of
/// modules around the tokens, below the crate's root.
fn collect(tokens: TokenStream, depth: usize, found: &mut Vec<CratePath>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < trees.len() {
        match &trees[at] {
            TokenTree::Ident(word) if word == "mod" => {
                // `mod name { ... }`
                if let Some(TokenTree::Group(body)) = trees.get(at + 2)
                    && body.delimiter() == Delimiter::Brace
                {
                    collect(body.stream(), depth + 1, found);
                    at += 2;
                }
            }
            TokenTree::Ident(word) if (word == "crate" || word == "super") && is_start(&trees[..at]) => {
                let line = word.span().start().line;
                let mut ups = usize::from(word == "super");
                at += 1;
                while ups > 0
                    && is_separator(&trees[at..])
                    && matches!(&trees.get(at + 2), Some(TokenTree::Ident(word)) if *word == "super")
                {
                    ups += 1;
                    at += 3;
                }
                if ups == 0 || ups == depth {
                    at += follow(&trees[at..], &[], line, found);
                }
                continue;
            }
            TokenTree::Group(group) => collect(group.stream(), depth, found),
            _ => {}
        }
        at += 1;
    }
}

/// Returns whether a word after `before` begins a path, and is not the visibility `pub(crate)`.
fn is_start(before: &[TokenTree]) -> bool {
    !matches!(before.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == ':' || punct.as_char() == '$')
}

fn is_separator(trees: &[TokenTree]) -> bool {
    matches!(trees, [TokenTree::Punct(a), TokenTree::Punct(b), ..] if a.as_char() == ':' && b.as_char() == ':')
}

/// Follows `::a::{b, c::d}` behind `prefix` and collects its paths; returns the number of trees.
fn follow(trees: &[TokenTree], prefix: &[String], line: usize, found: &mut Vec<CratePath>) -> usize {
    let mut segments = prefix.to_vec();
    let mut at = 0;
    while is_separator(&trees[at..]) {
        match trees.get(at + 2) {
            Some(TokenTree::Ident(word)) => segments.push(word.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in
                    inner.split(|tree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ','))
                {
                    if let Some(TokenTree::Ident(word)) = part.first() {
                        let mut longer = segments.clone();
                        longer.push(word.to_string());
                        follow(&part[1..], &longer, word.span().start().line, found);
                    }
                }
                return at + 3;
            }
            _ => break,
        }
        at += 3;
    }
    if !segments.is_empty() {
        found.push(CratePath { segments, line });
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIVIDED: DividedCrate = DividedCrate {
        source: "x/src",
        rooms: &[
            Room { folder: "low", uses: &[] },
            Room { folder: "high", uses: &["low"] },
            Room { folder: "top", uses: &["low", "high"] },
        ],
    };

    fn judge(file: &str, text: &str) -> Vec<String> {
        let files = ["low/mod.rs", "low/inner.rs", "high/mod.rs", "high/deep/mod.rs"].map(String::from);
        DIVIDED.judge(file, text.parse().unwrap(), &files)
    }

    #[test]
    fn items_of_doors_in_a_permitted_direction_are_lawful() {
        for lawful in [
            "use crate::low::Item; use crate::high::deep::Own; use super::deep;",
            "use crate::low::{self, Item as Other, nested::Name}; pub(crate) fn f() -> crate::low::Item {}",
            "/// [`Item`](crate::low::inner::Item)\nmod tests { use super::*; use crate::low::Item; }",
            "macro_rules! m { () => { $crate::anything } }",
        ] {
            assert_eq!(judge("high/file.rs", lawful), Vec::<String>::new(), "{lawful}");
        }
        assert_eq!(judge("lib.rs", "pub use low::inner::Item;"), Vec::<String>::new());
    }

    #[test]
    fn a_path_behind_a_door_is_found() {
        for text in [
            "use crate::low::inner::Item;",
            "use crate::low::{inner::Item, Other};",
            "use crate::{low::inner, low::Other};",
            "fn f() { crate::low::inner::call() }",
            "use super::super::low::inner;",
            "mod tests { use super::super::super::low::inner::Item; }",
        ] {
            let found = judge("high/file.rs", text);
            assert!(
                matches!(&*found, [only] if only.contains("behind the door of low")),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn a_direction_that_is_not_in_the_table_is_found() {
        for text in ["use crate::high::Item;", "use super::super::high::Item;", "type A = crate::top::Item;"]
        {
            let found = judge("low/inner.rs", text);
            assert!(matches!(&*found, [only] if only.contains("low may use no other")), "{text}: {found:?}");
        }
        assert_eq!(judge("low/mod.rs", "use super::high::Item;").len(), 1);
        assert_eq!(judge("high/deep/file.rs", "use super::super::super::top::Item;").len(), 1);
    }

    #[test]
    fn an_item_of_the_crates_root_and_a_file_without_a_room_are_found() {
        assert_eq!(judge("high/file.rs", "use crate::Item;").len(), 1);
        assert_eq!(judge("stray.rs", "").len(), 1);
        assert_eq!(judge("other/file.rs", "").len(), 1);
    }

    #[test]
    fn the_table_has_no_circle_and_circles_are_found() {
        for divided in CRATES {
            assert_eq!(divided.circles(), Vec::<String>::new());
        }
        let rooms: &[Room] = &[
            Room { folder: "a", uses: &["b"] },
            Room { folder: "b", uses: &["c"] },
            Room { folder: "c", uses: &["a"] },
        ];
        let circle = DividedCrate { source: "x", rooms };
        assert_eq!(
            circle.circles(),
            ["x: a and b use each other", "x: a and c use each other", "x: b and c use each other"]
        );
    }
}
