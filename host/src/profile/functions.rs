//! The functions with most samples.

use super::folded::Grouping;
use super::named::NamedProfile;
use std::collections::{BTreeMap, BTreeSet};

/// The samples of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSamples<'a> {
    /// The account, with a grouping.
    pub account: Option<&'a str>,
    /// The function's name.
    pub name: &'a str,
    /// The samples in which the function was innermost.
    pub own: u64,
    /// The samples with the function in the stack.
    pub total: u64,
}

/// Returns all functions, those with most samples of their own first.
pub fn functions(profile: &NamedProfile, grouping: Grouping) -> Vec<FunctionSamples<'_>> {
    let mut sums: BTreeMap<(Option<&str>, usize), (u64, u64)> = BTreeMap::new();
    for ((account, stack), count) in &profile.stacks {
        let account = (grouping == Grouping::ByAccount).then(|| account.name());
        if let Some(innermost) = stack.last() {
            sums.entry((account, *innermost)).or_default().0 += count;
        }
        // A recursive function counts once.
        for function in stack.iter().copied().collect::<BTreeSet<_>>() {
            sums.entry((account, function)).or_default().1 += count;
        }
    }
    let one = |((account, function), (own, total)): ((Option<_>, usize), (u64, u64))| FunctionSamples {
        account,
        name: &profile.functions[function].name,
        own,
        total,
    };
    let mut functions: Vec<FunctionSamples<'_>> = sums.into_iter().map(one).collect();
    functions.sort_by(|one, other| (other.own, other.total, one.name).cmp(&(one.own, one.total, other.name)));
    functions
}

#[cfg(test)]
mod tests {
    use super::super::Account;
    use super::super::named::tests::{profile, web};
    use super::*;

    #[test]
    fn a_function_has_its_own_samples_and_those_of_its_callees() {
        let profile = profile(&[
            (web(), &["main", "serve", "parse", "serve"], 3),
            (web(), &["main", "serve"], 2),
            (Account::Loop, &["main"], 1),
        ]);
        let found = |grouping| -> Vec<_> {
            functions(&profile, grouping)
                .into_iter()
                .map(|one| (one.account, one.name, one.own, one.total))
                .collect()
        };
        assert_eq!(
            found(Grouping::None),
            [(None, "serve", 5, 5), (None, "main", 1, 6), (None, "parse", 0, 3)]
        );
        assert_eq!(
            found(Grouping::ByAccount),
            [
                (Some("web"), "serve", 5, 5),
                (Some("loop"), "main", 1, 1),
                (Some("web"), "main", 0, 5),
                (Some("web"), "parse", 0, 3)
            ]
        );
    }
}
