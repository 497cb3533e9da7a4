//! Folded stacks: a line per stack, its functions from the outermost to the innermost with `;` between them, a space, and
//! the number of samples. `inferno`, Brendan Gregg's `flamegraph.pl`, speedscope and others draw them.

use super::named::NamedProfile;
use crate::output::printable::printable_line;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Whether each account has a frame of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Accounts are not distinguished.
    None,
    /// The outermost frame is the account.
    ByAccount,
}

/// Returns the folded stacks.
pub fn folded(profile: &NamedProfile, grouping: Grouping) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for ((account, stack), count) in &profile.stacks {
        let root = (grouping == Grouping::ByAccount).then(|| account.name());
        let functions = stack.iter().map(|index| &*profile.functions[*index].name);
        let frames: Vec<String> = root.into_iter().chain(functions).map(frame).collect();
        *lines.entry(frames.join(";")).or_insert(0) += count;
    }
    lines.into_iter().fold(String::new(), |mut text, (line, count)| {
        let _ = writeln!(text, "{line} {count}");
        text
    })
}

/// Returns a name without the characters that separate frames and lines. Activities' names come from the cell.
fn frame(name: &str) -> String {
    printable_line(name).replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::super::Account;
    use super::super::named::tests::{profile, web};
    use super::*;

    #[test]
    fn equal_stacks_of_several_accounts_are_one_line_unless_they_are_grouped() {
        let profile = profile(&[
            (web(), &["main", "serve"], 3),
            (Account::Loop, &["main", "serve"], 4),
            (Account::Loop, &["main"], 1),
        ]);
        assert_eq!(folded(&profile, Grouping::None), "main 1\nmain;serve 7\n");
        assert_eq!(
            folded(&profile, Grouping::ByAccount),
            "loop;main 1\nloop;main;serve 4\nweb;main;serve 3\n"
        );
    }

    #[test]
    fn separators_in_names_are_replaced() {
        let account = Account::Activity("a;b\nc\x1b".into());
        let text = folded(&profile(&[(account, &["f<[u8; 4]>"], 1)]), Grouping::ByAccount);
        assert_eq!(text, "a:b\\x0ac\\x1b;f<[u8: 4]> 1\n");
    }
}
