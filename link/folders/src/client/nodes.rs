//! The files of which the client knows, with their paths: by these it finds them again after a restart of the service.

use crate::wire::ROOT;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use isola_volumes::{FileId, RenameKind};

/// The files without users that stay known: those of the operation that runs, and some more.
const MOST_UNHELD: usize = 256;

/// How many of them are forgotten at once.
const FORGOTTEN: usize = 32;

/// The lowest bit above the service's numbers.
const ALIAS: u64 = 1 << 32;

/// A file.
struct Node {
    /// Its path within the folder; `None` without a name.
    path: Option<Vec<u8>>,
    /// How often the service has returned it.
    lookups: u64,
    is_held: bool,
    is_symlink: bool,
    /// Whether the service does not have it any more: it had no name when the service ended.
    is_lost: bool,
}

/// The known files, without the root.
#[derive(Default)]
pub(super) struct Nodes {
    known: BTreeMap<FileId, Node>,
    /// Those without users, the one that was used last at the end.
    unheld: VecDeque<FileId>,
}

/// Returns the service's number of a file.
pub(super) fn number_of(id: FileId) -> u64 {
    id.0 % ALIAS
}

/// Returns a path with one more name.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    [directory, separator, name].concat()
}

impl Nodes {
    /// Notes that the service has returned a file. Returns its number in this cell, which is that of no lost file.
    pub fn know(&mut self, number: u64, path: Option<Vec<u8>>, is_symlink: bool) -> FileId {
        let id = self.live(number);
        let new = || Node { path: None, lookups: 0, is_held: false, is_symlink, is_lost: false };
        let node = self.known.entry(id).or_insert_with(new);
        node.lookups = node.lookups.saturating_add(1);
        node.is_symlink = is_symlink;
        if path.is_some() {
            node.path = path;
        }
        if !node.is_held {
            self.unheld.retain(|other| *other != id);
            self.unheld.push_back(id);
        }
        id
    }

    /// Returns the number in this cell for a number of the service.
    fn live(&self, number: u64) -> FileId {
        let is_lost = |id: &FileId| self.known.get(id).is_some_and(|node| node.is_lost);
        let mut id = FileId(number);
        while is_lost(&id) {
            id = FileId(id.0 + ALIAS);
        }
        id
    }

    /// Returns the path of a directory within the folder; `None` if it is not known, or has none.
    pub fn path(&self, id: FileId) -> Option<Vec<u8>> {
        if id == ROOT { Some(Vec::new()) } else { self.known.get(&id)?.path.clone() }
    }

    pub fn is_symlink(&self, id: FileId) -> bool {
        self.known.get(&id).is_some_and(|node| node.is_symlink)
    }

    pub fn is_lost(&self, id: FileId) -> bool {
        self.known.get(&id).is_some_and(|node| node.is_lost)
    }

    pub fn hold(&mut self, id: FileId) {
        if let Some(node) = self.known.get_mut(&id) {
            node.is_held = true;
            self.unheld.retain(|other| *other != id);
        }
    }

    /// Notes that a file has no users. It stays known for a while, unless another client may have removed its name.
    pub fn unhold(&mut self, id: FileId, may_lack_name: bool) {
        if let Some(node) = self.known.get_mut(&id) {
            node.is_held = false;
            if may_lack_name {
                node.path = None;
            }
            self.unheld.push_back(id);
        }
    }

    /// Forgets files that have neither users nor a name, and those without users that were not used for the longest time, if
    /// there are many. Returns their numbers, and how often the service has returned them.
    pub fn forget(&mut self) -> Vec<(u64, u64)> {
        let is_unnamed = |id: &FileId| self.known.get(id).is_none_or(|node| node.path.is_none());
        let mut forgotten: Vec<FileId> = self.unheld.iter().copied().filter(is_unnamed).collect();
        if self.unheld.len() >= MOST_UNHELD + FORGOTTEN {
            forgotten.extend(self.unheld.iter().take(FORGOTTEN));
        }
        if forgotten.is_empty() {
            return Vec::new();
        }
        self.unheld.retain(|id| !forgotten.contains(id));
        let removed = forgotten.into_iter().filter_map(|id| Some((id, self.known.remove(&id)?)));
        removed.filter(|(_, node)| !node.is_lost).map(|(id, node)| (number_of(id), node.lookups)).collect()
    }

    /// Notes that a name was removed, or replaced.
    pub fn removed(&mut self, path: &[u8]) {
        for node in self.known.values_mut() {
            if node.path.as_deref().is_some_and(|known| is_within(known, path)) {
                node.path = None;
            }
        }
    }

    /// Notes that a name was changed.
    pub fn moved(&mut self, from: &[u8], to: &[u8], kind: RenameKind) {
        if kind == RenameKind::Exchange {
            // No name contains a NUL.
            let between = b"\0";
            self.replace(from, between);
            self.replace(to, from);
            self.replace(between, to);
        } else {
            self.removed(to);
            self.replace(from, to);
        }
    }

    fn replace(&mut self, from: &[u8], to: &[u8]) {
        for node in self.known.values_mut() {
            if let Some(path) = &mut node.path
                && is_within(path, from)
            {
                path.splice(..from.len(), to.iter().copied());
            }
        }
    }

    /// Forgets the lookups, which the next incarnation of the service does not know. Returns all files that it can have, with
    /// their paths, a directory before its entries. The others are lost.
    pub fn forget_lookups(&mut self) -> Vec<(Vec<u8>, FileId)> {
        let mut paths = Vec::new();
        for (id, node) in &mut self.known {
            node.lookups = 0;
            match &node.path {
                Some(path) => paths.push((path.clone(), *id)),
                None => node.is_lost = true,
            }
        }
        paths.sort();
        paths
    }

    /// Notes whether the next incarnation of the service has found a file.
    pub fn found(&mut self, id: FileId, is_found: bool) {
        if let Some(node) = self.known.get_mut(&id) {
            node.is_lost = !is_found;
        }
    }

    /// Notes how often the next incarnation has returned a number. Returns whether its file is known.
    pub fn looked_up(&mut self, number: u64, lookups: u64) -> bool {
        let id = self.live(number);
        self.known.get_mut(&id).map(|node| node.lookups = lookups).is_some()
    }
}

/// Returns whether a path is that of a directory, or leads through it.
fn is_within(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(nodes: &Nodes, id: u64) -> Option<Vec<u8>> {
        nodes.path(FileId(id))
    }

    #[test]
    fn paths_follow_the_names() {
        let mut nodes = Nodes::default();
        for (number, name) in [(10, "a"), (11, "a/b"), (12, "a/b/c"), (13, "ab"), (14, "d")] {
            nodes.know(number, Some(name.into()), false);
        }
        nodes.moved(b"a", b"d", RenameKind::Replace);
        assert_eq!(path(&nodes, 12), Some(b"d/b/c".to_vec()));
        assert_eq!(path(&nodes, 13), Some(b"ab".to_vec()), "not within");
        assert_eq!(path(&nodes, 14), None, "replaced");
        nodes.moved(b"d/b", b"ab", RenameKind::Exchange);
        assert_eq!(path(&nodes, 12), Some(b"ab/c".to_vec()));
        assert_eq!(path(&nodes, 13), Some(b"d/b".to_vec()));
        nodes.removed(b"ab");
        assert_eq!(path(&nodes, 12), None);
        assert_eq!(nodes.path(ROOT), Some(Vec::new()));
        assert_eq!(joined(b"", b"x"), b"x");
        assert_eq!(joined(b"d", b"x"), b"d/x");
    }

    #[test]
    fn files_without_users_are_forgotten_and_held_ones_stay() {
        let mut nodes = Nodes::default();
        nodes.hold(nodes.live(7));
        nodes.know(7, Some(b"held".to_vec()), false);
        nodes.hold(FileId(7));
        let mut forgotten = Vec::new();
        for number in 100..1100 {
            nodes.know(number, Some(b"x".to_vec()), false);
            nodes.know(number, None, false);
            forgotten.extend(nodes.forget());
        }
        assert!(nodes.known.len() <= MOST_UNHELD + FORGOTTEN + 1);
        assert_eq!(forgotten[0], (100, 2));
        assert!(path(&nodes, 7).is_some());
        nodes.unhold(FileId(7), false);
        assert_eq!(nodes.unheld.back(), Some(&FileId(7)));
        nodes.hold(FileId(7));
        assert!(nodes.forget().iter().all(|(number, _)| *number != 7));
        nodes.unhold(FileId(7), true);
        assert!(nodes.forget().contains(&(7, 1)));
    }

    #[test]
    fn a_lost_file_and_a_new_one_with_its_number_are_two() {
        let mut nodes = Nodes::default();
        let old = nodes.know(5, Some(b"old".to_vec()), false);
        nodes.hold(old);
        nodes.removed(b"old");
        assert!(nodes.forget_lookups().is_empty());
        assert!(nodes.is_lost(old));
        let new = nodes.know(5, Some(b"new".to_vec()), false);
        assert_ne!(new, old);
        assert_eq!(number_of(new), 5);
        assert!(!nodes.is_lost(new) && nodes.is_lost(old));
        assert!(nodes.looked_up(5, 3));
        assert_eq!(nodes.known[&new].lookups, 3);
    }
}
