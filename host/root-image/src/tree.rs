//! The files of a root file system by their names, in memory. Contents are in the image already.
//!
//! Paths of an archive lead into the tree alone: an absolute path begins at its root, `..` in a path is an error, and a
//! symbolic link in the middle of a path is followed as the program would follow it, which never leaves the root.
//!
//! A tree grows layer by layer, as OCI has them. Each name has the number of the layer that set it: a whiteout
//! (`.wh.NAME`) removes a name of lower layers, and an opaque directory (`.wh..wh..opq`) has none of theirs.

use crate::ext4::Content;
use crate::{BuildError, MOST_FILES};
use std::collections::BTreeMap;

/// The most bytes of a name, of a path, and of a link's target.
pub const MOST_NAME: usize = 255;
pub const MOST_PATH: usize = 4095;
/// The most symbolic links that a path leads through, as in Linux.
const MOST_LINKS: usize = 40;
/// The prefix of the names of whiteouts.
const WHITEOUT: &[u8] = b".wh.";
/// The name that makes a directory opaque, and the prefix of other names with a meaning.
const OPAQUE: &[u8] = b".wh..wh..opq";
const RESERVED: &[u8] = b".wh..wh.";

/// The number of a file in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(usize);

/// Extended attributes by name.
pub type ExtendedAttributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// A point in time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The 12 bits of permissions.
    pub permissions: u32,
    pub user: u32,
    pub group: u32,
    pub modified: Timestamp,
}

/// The type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    Character,
    Block,
}

/// A file of any type.
#[derive(Debug)]
pub struct Node {
    pub attributes: Attributes,
    pub extended: ExtendedAttributes,
    pub kind: NodeKind,
}

/// The type of a file, with its contents.
#[derive(Debug)]
pub enum NodeKind {
    File(Content),
    Directory(BTreeMap<Vec<u8>, Entry>),
    Symlink(Vec<u8>),
    /// With major and minor number.
    Device(DeviceKind, u32, u32),
    Fifo,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub node: NodeId,
    layer: u32,
}

/// The names of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Their number; that of a directory counts `.` and the `..` of its directories.
    pub names: u32,
    /// The directory with the latest of them; the root's is itself.
    pub parent: NodeId,
}

/// A root file system.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    layer: u32,
}

/// Whether names of whiteouts have a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// They remove names of lower layers.
    Apply,
    /// They are names as others.
    None,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// Returns an empty root directory.
    pub fn new() -> Self {
        let root = Node {
            attributes: Attributes::of_parents(),
            extended: ExtendedAttributes::new(),
            kind: NodeKind::Directory(BTreeMap::new()),
        };
        Self { nodes: vec![root], layer: 0 }
    }

    /// Begins a layer above the present ones.
    pub fn begin_layer(&mut self) {
        self.layer += 1;
    }

    pub fn root(&self) -> NodeId {
        NodeId(0)
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Adds a file at a path. It replaces a file of that path, but a directory keeps its entries if it is replaced by one.
    ///
    /// # Errors
    /// [`BuildError::Path`] with the reason, [`BuildError::TooMany`].
    pub fn insert(&mut self, path: &[u8], node: Node, whiteouts: Whiteouts) -> Result<(), BuildError> {
        let Some((parent, name)) = self.parent_of(path)? else {
            return match node.kind {
                NodeKind::Directory(_) => {
                    self.nodes[0].attributes = node.attributes;
                    self.nodes[0].extended = node.extended;
                    Ok(())
                }
                _ => Err(BuildError::path(path, "the root is no directory")),
            };
        };
        if whiteouts == Whiteouts::Apply && name.starts_with(WHITEOUT) {
            self.white_out(parent, name);
            return Ok(());
        }
        if let NodeKind::Symlink(target) = &node.kind
            && (target.is_empty() || target.len() > MOST_PATH)
        {
            return Err(BuildError::path(path, "its target has no length of 1 to 4095 bytes"));
        }
        let layer = self.layer;
        if matches!(node.kind, NodeKind::Directory(_))
            && let Some(entry) = self.entries_mut(parent).and_then(|entries| entries.get_mut(name))
        {
            let existing = entry.node;
            if matches!(self.nodes[existing.0].kind, NodeKind::Directory(_)) {
                self.set_entry(parent, name, Entry { node: existing, layer });
                let known = &mut self.nodes[existing.0];
                known.attributes = node.attributes;
                known.extended = node.extended;
                return Ok(());
            }
        }
        let added = self.add(node)?;
        self.set_entry(parent, name, Entry { node: added, layer });
        Ok(())
    }

    /// Adds another name of the file at `target`.
    ///
    /// # Errors
    /// [`BuildError::Path`] with the reason.
    pub fn link(&mut self, path: &[u8], target: &[u8], whiteouts: Whiteouts) -> Result<(), BuildError> {
        let missing =
            || BuildError::path(path, "it is a hard link to a file that the archive has not before it");
        let (directory, name) = self.parent_of(target)?.ok_or_else(missing)?;
        let node = self.entries(directory).and_then(|entries| entries.get(name)).ok_or_else(missing)?.node;
        if matches!(self.node(node).kind, NodeKind::Directory(_)) {
            return Err(BuildError::path(path, "it is a hard link to a directory"));
        }
        let Some((parent, name)) = self.parent_of(path)? else {
            return Err(BuildError::path(path, "the root is no directory"));
        };
        if whiteouts == Whiteouts::Apply && name.starts_with(WHITEOUT) {
            self.white_out(parent, name);
        } else {
            let layer = self.layer;
            self.set_entry(parent, name, Entry { node, layer });
        }
        Ok(())
    }

    /// Returns the nodes that have names, with the number of these.
    pub fn nodes_in_use(&self) -> BTreeMap<NodeId, Usage> {
        let root = self.root();
        let mut nodes = BTreeMap::from([(root, Usage { names: 2, parent: root })]);
        let mut waiting = vec![root];
        while let Some(directory) = waiting.pop() {
            for entry in self.entries(directory).into_iter().flatten().map(|(_, entry)| entry) {
                let is_directory = matches!(self.node(entry.node).kind, NodeKind::Directory(_));
                let usage = nodes.entry(entry.node).or_insert(Usage { names: 0, parent: directory });
                usage.names = usage.names.saturating_add(if is_directory { 2 } else { 1 });
                usage.parent = directory;
                if is_directory {
                    waiting.push(entry.node);
                    if let Some(parent) = nodes.get_mut(&directory) {
                        parent.names = parent.names.saturating_add(1);
                    }
                }
            }
        }
        nodes
    }

    fn add(&mut self, node: Node) -> Result<NodeId, BuildError> {
        if self.nodes.len() >= MOST_FILES {
            return Err(BuildError::TooMany);
        }
        self.nodes.push(node);
        Ok(NodeId(self.nodes.len() - 1))
    }

    fn entries(&self, directory: NodeId) -> Option<&BTreeMap<Vec<u8>, Entry>> {
        match &self.nodes[directory.0].kind {
            NodeKind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    fn entries_mut(&mut self, directory: NodeId) -> Option<&mut BTreeMap<Vec<u8>, Entry>> {
        match &mut self.nodes[directory.0].kind {
            NodeKind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    fn set_entry(&mut self, directory: NodeId, name: &[u8], entry: Entry) {
        if let Some(entries) = self.entries_mut(directory) {
            entries.insert(name.to_vec(), entry);
        }
    }

    /// Returns the directory of a path's last name, and that name; `None` for the root. Directories that are missing are
    /// created.
    fn parent_of<'a>(&mut self, path: &'a [u8]) -> Result<Option<(NodeId, &'a [u8])>, BuildError> {
        let mut names = names_of(path)?;
        let Some(last) = names.pop() else { return Ok(None) };
        let mut at = vec![self.root()];
        let mut waiting: Vec<Vec<u8>> = names.into_iter().rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = waiting.pop() {
            if name == b".." {
                // Of a link's target: the root is its own parent.
                if at.len() > 1 {
                    at.pop();
                }
                continue;
            }
            let directory = at[at.len() - 1];
            let next = match self.entries(directory).and_then(|entries| entries.get(&name)) {
                Some(entry) => entry.node,
                None => self.make_parent(directory, &name)?,
            };
            match &self.node(next).kind {
                NodeKind::Directory(_) => at.push(next),
                NodeKind::Symlink(target) => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(BuildError::path(path, "it leads through more than 40 symbolic links"));
                    }
                    if target.starts_with(b"/") {
                        at.truncate(1);
                    }
                    let names = target.split(|byte| *byte == b'/').rev();
                    let names = names.filter(|name| !name.is_empty() && *name != b".");
                    waiting.extend(names.map(<[u8]>::to_vec));
                }
                _ => return Err(BuildError::path(path, "a part of it is no directory")),
            }
        }
        Ok(Some((at[at.len() - 1], last)))
    }

    fn make_parent(&mut self, directory: NodeId, name: &[u8]) -> Result<NodeId, BuildError> {
        if name.len() > MOST_NAME {
            return Err(BuildError::path(name, "a name has at most 255 bytes"));
        }
        let node = self.add(Node {
            attributes: Attributes::of_parents(),
            extended: ExtendedAttributes::new(),
            kind: NodeKind::Directory(BTreeMap::new()),
        })?;
        let layer = self.layer;
        self.set_entry(directory, name, Entry { node, layer });
        Ok(node)
    }

    /// Applies a whiteout in a directory.
    fn white_out(&mut self, directory: NodeId, name: &[u8]) {
        if name == OPAQUE {
            self.remove_lower(directory);
        } else if !name.starts_with(RESERVED) {
            let name = &name[WHITEOUT.len()..];
            let layer = self.layer;
            let Some(entries) = self.entries_mut(directory) else { return };
            match entries.get(name).copied() {
                Some(entry) if entry.layer < layer => drop(entries.remove(name)),
                // This layer has set the name before: it hides the lower one.
                Some(entry) => self.remove_lower(entry.node),
                None => {}
            }
        }
    }

    /// Removes the names of lower layers from a directory of this layer, at all depths.
    fn remove_lower(&mut self, directory: NodeId) {
        let layer = self.layer;
        let mut waiting = vec![directory];
        while let Some(directory) = waiting.pop() {
            if let Some(entries) = self.entries_mut(directory) {
                entries.retain(|_, entry| entry.layer >= layer);
                waiting.extend(entries.values().map(|entry| entry.node));
            }
        }
    }
}

impl Attributes {
    /// Returns those of directories that a path names, and that no entry describes.
    fn of_parents() -> Self {
        Self { permissions: 0o755, user: 0, group: 0, modified: Timestamp::default() }
    }
}

/// Returns the names of a path, which may be absolute.
fn names_of(path: &[u8]) -> Result<Vec<&[u8]>, BuildError> {
    let refuse = |reason| Err(BuildError::path(path, reason));
    if path.len() > MOST_PATH {
        return refuse("a path has at most 4095 bytes");
    }
    if path.contains(&0) {
        return refuse("it contains a zero byte");
    }
    let names: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if names.contains(&b"..".as_slice()) {
        return refuse("it contains `..`, which may lead out of the root");
    }
    if names.iter().any(|name| name.len() > MOST_NAME) {
        return refuse("a name has at most 255 bytes");
    }
    Ok(names)
}
