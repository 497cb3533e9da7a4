//! Stacks with the names of functions.

use super::{Account, Profile};
use crate::symbols::{AddressKind, Symbols};
use std::collections::{BTreeMap, HashMap};

/// A profile with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedProfile {
    /// The functions.
    pub functions: Vec<Function>,
    /// The number of samples by account and stack, of indices in `functions`, outermost first.
    pub stacks: BTreeMap<(Account, Vec<usize>), u64>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// The demangled name, or the address of the code if there is none. An inlined function has a name without its
    /// module, so its source file follows in parentheses.
    pub name: String,
    /// The source file, if the image names it: that of the function's first sample.
    pub file: Option<String>,
    /// Whether the image names the function.
    pub is_named: bool,
}

impl NamedProfile {
    /// Returns the profile with the names in `symbols`, inlined calls included; without names for `None`.
    pub fn new(profile: &Profile, symbols: Option<&Symbols>) -> Self {
        let mut names =
            Names { symbols, indices: HashMap::new(), frames: HashMap::new(), functions: Vec::new() };
        let mut stacks = BTreeMap::new();
        for ((account, addresses), count) in &profile.stacks {
            let mut stack = Vec::new();
            for (depth, address) in addresses.iter().enumerate() {
                let kind = if depth == 0 { AddressKind::Instruction } else { AddressKind::Return };
                stack.extend_from_slice(names.frames(*address, kind));
            }
            stack.reverse();
            *stacks.entry((account.clone(), stack)).or_insert(0) += count;
        }
        Self { functions: names.functions, stacks }
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.stacks.values().sum()
    }

    /// Returns whether any function has a name.
    pub fn has_names(&self) -> bool {
        self.functions.iter().any(|function| function.is_named)
    }
}

/// The functions of addresses.
struct Names<'a> {
    symbols: Option<&'a Symbols>,
    /// Indices of functions by name.
    indices: HashMap<String, usize>,
    /// Indices of the functions at an address, innermost first.
    frames: HashMap<(u64, AddressKind), Vec<usize>>,
    functions: Vec<Function>,
}

impl Names<'_> {
    fn frames(&mut self, address: u64, kind: AddressKind) -> &[usize] {
        let Self { symbols, indices, frames, functions } = self;
        frames.entry((address, kind)).or_insert_with(|| {
            let mut index = |name: Option<String>, file: Option<String>| {
                let is_named = name.is_some();
                let name =
                    name.map_or_else(|| format!("{address:#x}"), |name| qualified(name, file.as_deref()));
                *indices.entry(name.clone()).or_insert_with(|| {
                    functions.push(Function { name, file, is_named });
                    functions.len() - 1
                })
            };
            match symbols {
                Some(symbols) => {
                    let found = symbols.frames(address, kind).into_iter();
                    found.map(|frame| index(frame.function, frame.file)).collect()
                }
                None => vec![index(None, None)],
            }
        })
    }
}

/// Returns a name with the source file, if it names no module.
fn qualified(name: String, file: Option<&str>) -> String {
    let own = name.split('<').next().unwrap_or_default();
    let has_module = name.starts_with('<') || own.contains("::");
    match file.and_then(|file| file.rsplit('/').next()) {
        Some(file) if !has_module => format!("{name} ({file})"),
        _ => name,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a profile of these stacks, outermost function first.
    pub fn profile(stacks: &[(Account, &[&str], u64)]) -> NamedProfile {
        let mut profile = NamedProfile::default();
        for (account, names, count) in stacks {
            let stack = names
                .iter()
                .map(|name| {
                    let found = profile.functions.iter().position(|function| function.name == *name);
                    found.unwrap_or_else(|| {
                        let file = Some(format!("src/{name}.rs"));
                        profile.functions.push(Function { name: (*name).into(), file, is_named: true });
                        profile.functions.len() - 1
                    })
                })
                .collect();
            profile.stacks.insert((account.clone(), stack), *count);
        }
        profile
    }

    pub fn web() -> Account {
        Account::Activity("web".into())
    }

    #[test]
    fn without_symbols_a_function_is_an_address_and_the_outermost_is_first() {
        let mut of = Profile::default();
        of.stacks.insert((Account::Loop, vec![0x10, 0x20]), 3);
        of.stacks.insert((web(), vec![0x10]), 1);
        let named = NamedProfile::new(&of, None);
        let name = |index: &usize| &*named.functions[*index].name;
        let stacks: Vec<_> = named
            .stacks
            .iter()
            .map(|((_, stack), count)| (stack.iter().map(name).collect::<Vec<_>>(), *count))
            .collect();
        assert_eq!(stacks, [(vec!["0x10"], 1), (vec!["0x20", "0x10"], 3)]);
        assert!(!named.has_names());
        assert_eq!(named.samples(), 4);
    }

    #[test]
    fn a_name_without_a_module_has_its_file() {
        for (name, expected) in [
            ("pass", "pass (event_loop.rs)"),
            ("{closure#0}", "{closure#0} (event_loop.rs)"),
            ("map<a::B, c::D>", "map<a::B, c::D> (event_loop.rs)"),
            ("a::b<c>", "a::b<c>"),
            ("<a::B as c::D>::e", "<a::B as c::D>::e"),
        ] {
            assert_eq!(qualified(name.into(), Some("cell/events/src/event_loop.rs")), expected);
        }
        assert_eq!(qualified("pass".into(), None), "pass");
    }

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let symbols = Symbols::open(&std::env::current_exe().unwrap()).unwrap();
        let mut of = Profile::default();
        of.stacks.insert((web(), vec![crate::symbols::tests::address_in_file() + 1]), 1);
        let named = NamedProfile::new(&of, Some(&symbols));
        assert!(named.has_names());
        assert!(named.functions.last().unwrap().name.contains("a_function_with_a_name"), "{named:?}");
    }
}
