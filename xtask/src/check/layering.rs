//! Law 1: who may depend on whom.
//!
//! ```text
//! abi <- machine <- drivers <- supervisor
//!   \
//!    <- platform <- cell <- grid, link, net, fs <- linux <- apps
//!        (on iobuf)     \
//!                        <- bare (also on machine and drivers), hosted <- gateway (also on net, fs)
//! ```
//!
//! The law is [`LAYERS`]: a layer is a set of folders, and names the layers that it may stand on. A package
//! belongs to the layer with the longest folder that contains it. Dependencies for tests alone are exempt,
//! with one exception: the supervisor and what runs in cells meet in `abi` and nowhere else, not even there.

use cargo_metadata::{DependencyKind, Package};

use super::{Check, Findings};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "layering",
    about: "packages depend on the layers below them, and on no others",
    remedy: "define a trait in the lower layer and let the upper one register; a new folder gets its place in \
             xtask/src/check/layering.rs, with the reason in docs/decisions/",
    run,
};

/// A level of the tree.
struct Layer {
    name: &'static str,
    /// Folders whose packages belong here.
    folders: &'static [&'static str],
    /// The layers that its packages may depend on. Its own name: they may depend on each other.
    stands_on: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer { name: "abi", folders: &["abi"], stands_on: &[] },
    // The supervisor's side of the wall.
    Layer { name: "machine", folders: &["machine"], stands_on: &["abi"] },
    Layer { name: "drivers", folders: &["drivers"], stands_on: &["abi", "machine"] },
    Layer {
        name: "supervisor",
        folders: &["supervisor"],
        stands_on: &["abi", "machine", "drivers", "image link"],
    },
    // What the build script of an image needs; no code of it is in the image.
    Layer { name: "image link", folders: &["machine/link"], stands_on: &[] },
    // The cell's side.
    Layer { name: "iobuf", folders: &["cell/iobuf"], stands_on: &[] },
    Layer { name: "platform", folders: &["cell/platform"], stands_on: &["abi", "iobuf"] },
    Layer { name: "cell", folders: &["cell"], stands_on: &["abi", "iobuf", "platform", "cell"] },
    Layer {
        name: "bare",
        folders: &["cell/bare"],
        stands_on: &["abi", "iobuf", "platform", "cell", "machine", "drivers"],
    },
    Layer { name: "hosted", folders: &["cell/hosted"], stands_on: &["abi", "iobuf", "platform", "cell"] },
    Layer {
        name: "services",
        folders: &["grid", "link", "net", "fs"],
        stands_on: &["abi", "iobuf", "platform", "cell", "services"],
    },
    Layer {
        name: "linux",
        folders: &["linux"],
        stands_on: &["abi", "iobuf", "platform", "cell", "services", "linux"],
    },
    // What connects a hosted cell to its host: its sockets, its files.
    Layer {
        name: "gateway",
        folders: &["net/gateway", "fs/export"],
        stands_on: &["abi", "iobuf", "platform", "cell", "services", "hosted"],
    },
    // What applications link: the one place that picks the platform.
    Layer {
        name: "application library",
        folders: &["cell/app"],
        stands_on: &["abi", "iobuf", "platform", "cell", "services", "bare", "hosted", "gateway"],
    },
    Layer {
        name: "apps",
        folders: &["apps"],
        stands_on: &[
            "abi",
            "iobuf",
            "platform",
            "cell",
            "services",
            "linux",
            "application library",
            "image link",
        ],
    },
    // Images that try one layer or another on a machine.
    Layer {
        name: "test images",
        folders: &["tests/images"],
        stands_on: &[
            "abi",
            "machine",
            "drivers",
            "iobuf",
            "platform",
            "cell",
            "bare",
            "services",
            "linux",
            "application library",
            "image link",
        ],
    },
    // What runs on the user's machine.
    Layer { name: "host", folders: &["host"], stands_on: &["abi"] },
    // A test's needs of the host, and its claims: crates without dependencies of ours.
    Layer { name: "test tools", folders: &["tests/need", "tests/proves"], stands_on: &[] },
    Layer { name: "tests", folders: &["tests"], stands_on: &["abi", "host", "test tools"] },
    // Fuzz targets feed both sides of the wall, each on its own.
    Layer {
        name: "fuzz",
        folders: &["fuzz"],
        stands_on: &["abi", "machine", "supervisor", "host", "iobuf", "services", "apps"],
    },
    // What stands beside an application does the same work, with the same code.
    Layer { name: "benches", folders: &["benches"], stands_on: &["abi", "host", "apps"] },
    Layer { name: "xtask", folders: &["xtask"], stands_on: &["test tools"] },
];

/// The layers on the cell's side of the wall.
const CELL_SIDE: &[&str] = &[
    "iobuf",
    "platform",
    "cell",
    "bare",
    "hosted",
    "services",
    "gateway",
    "linux",
    "application library",
    "apps",
];

/// One package standing on another.
struct Edge<'a> {
    from: &'a str,
    from_folder: &'a str,
    to: &'a str,
    to_folder: &'a str,
    kind: DependencyKind,
}

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let members = workspace.members();
    let mut failures: Vec<String> = Vec::new();
    for package in &members {
        let folder = workspace.folder(package);
        if layer_of(&folder).is_none() {
            failures.push(format!("{} lies in {folder}, which is in no layer", package.name));
        }
        for (dependency, kind) in own_dependencies(package, &members) {
            let edge = Edge {
                from: &package.name,
                from_folder: &folder,
                to: &dependency.name,
                to_folder: &workspace.folder(dependency),
                kind,
            };
            failures.extend(judge(&edge));
        }
    }
    Ok(Findings::of(failures))
}

/// Our own packages that `package` declares, optional ones and those of other targets included.
fn own_dependencies<'a>(package: &Package, members: &[&'a Package]) -> Vec<(&'a Package, DependencyKind)> {
    let mut found = Vec::new();
    for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
        if let Some(member) = members.iter().find(|member| member.name.as_str() == dependency.name) {
            found.push((*member, dependency.kind));
        }
    }
    found
}

/// What is wrong with `edge`, if anything is.
fn judge(edge: &Edge) -> Option<String> {
    let from = layer_of(edge.from_folder)?;
    let to = layer_of(edge.to_folder)?;
    let Edge { from: from_name, to: to_name, .. } = edge;
    if edge.kind == DependencyKind::Development {
        return crosses_the_wall(from, to).then(|| {
            format!("{from_name} tests itself with {to_name}: supervisor and cells meet in abi alone")
        });
    }
    (!from.stands_on.contains(&to.name)).then(|| {
        let allowed = if from.stands_on.is_empty() { "nothing".into() } else { from.stands_on.join(", ") };
        format!("{from_name} ({}) depends on {to_name} ({}); it may stand on: {allowed}", from.name, to.name)
    })
}

fn crosses_the_wall(from: &Layer, to: &Layer) -> bool {
    let pair = [from.name, to.name];
    pair.contains(&"supervisor") && pair.iter().any(|name| CELL_SIDE.contains(name))
}

/// The layer of the package in `folder`: the one whose folder is the longest that contains it.
fn layer_of(folder: &str) -> Option<&'static Layer> {
    LAYERS
        .iter()
        .flat_map(|layer| layer.folders.iter().map(move |prefix| (prefix, layer)))
        .filter(|(prefix, _)| {
            folder.strip_prefix(**prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
        .max_by_key(|(prefix, _)| prefix.len())
        .map(|(_, layer)| layer)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn verdict(from: &str, to: &str, kind: DependencyKind) -> Option<String> {
        judge(&Edge { from: "upper", from_folder: from, to: "lower", to_folder: to, kind })
    }

    fn allowed(from: &str, to: &str) -> bool {
        verdict(from, to, DependencyKind::Normal).is_none()
    }

    #[test]
    fn the_law_of_the_design_holds_in_the_table() {
        for (from, to) in [
            ("machine", "abi"),
            ("drivers", "machine"),
            ("supervisor", "drivers"),
            ("cell/platform", "cell/iobuf"),
            ("cell/events", "cell/platform"),
            ("cell/bare", "machine"),
            ("cell/bare", "drivers"),
            ("net/stack", "cell/events"),
            ("grid/ledger", "abi"),
            ("linux", "fs"),
            ("cell/app", "cell/bare"),
            ("cell/app", "net/sockets"),
            ("cell/app", "net/gateway"),
            ("net/gateway", "cell/hosted"),
            ("apps/kv", "cell/app"),
            ("tests/images/crash", "cell/app"),
            ("tests/images/hello", "machine"),
            ("tests/images/hello", "machine/link"),
            ("apps/kv", "machine/link"),
            ("tests", "host"),
            ("host", "abi"),
        ] {
            assert!(allowed(from, to), "{from} -> {to} is lawful");
        }
        for (from, to) in [
            ("abi", "machine"),
            ("machine", "drivers"),
            ("drivers", "supervisor"),
            ("drivers", "cell/iobuf"),
            ("supervisor", "cell/platform"),
            ("cell/bare", "supervisor"),
            ("apps/kv", "supervisor"),
            ("tests/images/hello", "supervisor"),
            ("net/stack", "machine/link"),
            ("cell/events", "machine"),
            ("cell/events", "cell/bare"),
            ("cell/events", "grid/ledger"),
            ("cell/iobuf", "cell/platform"),
            ("cell/platform", "cell/events"),
            ("net/stack", "drivers"),
            ("net/stack", "linux"),
            ("net/sockets", "cell/hosted"),
            ("net/sockets", "net/gateway"),
            ("apps/kv", "net/gateway"),
            ("apps/kv", "apps/primes"),
            ("apps/kv", "cell/bare"),
            ("host", "machine"),
            ("xtask", "abi"),
        ] {
            assert!(!allowed(from, to), "{from} -> {to} breaks the law");
        }
    }

    #[test]
    fn test_dependencies_are_exempt_except_across_the_wall() {
        assert_eq!(verdict("cell/iobuf", "cell/events", DependencyKind::Development), None);
        assert!(verdict("supervisor", "cell/memory", DependencyKind::Development).is_some());
        assert!(verdict("apps/kv", "supervisor", DependencyKind::Development).is_some());
        assert!(!allowed("cell/iobuf", "cell/events"));
        assert!(verdict("cell/iobuf", "cell/events", DependencyKind::Build).is_some());
    }

    #[test]
    fn a_folder_belongs_to_the_longest_prefix_of_whole_names() {
        assert_eq!(layer_of("cell/bare").map(|layer| layer.name), Some("bare"));
        assert_eq!(layer_of("cell/barely").map(|layer| layer.name), Some("cell"));
        assert_eq!(layer_of("tests/images/spin").map(|layer| layer.name), Some("test images"));
        assert!(layer_of("scratch").is_none());
        assert!(layer_of("hosting").is_none());
    }

    /// All layers that packages of `name` can reach.
    fn reach(name: &'static str) -> BTreeSet<&'static str> {
        let mut found = BTreeSet::new();
        let mut open = vec![name];
        while let Some(next) = open.pop() {
            let layer = LAYERS.iter().find(|layer| layer.name == next).expect("the table names known layers");
            open.extend(layer.stands_on.iter().filter(|below| found.insert(**below)));
        }
        found
    }

    #[test]
    fn no_path_in_the_table_crosses_the_wall_or_closes_a_circle() {
        assert!(CELL_SIDE.iter().all(|name| !reach("supervisor").contains(name)));
        for name in CELL_SIDE {
            assert!(!reach(name).contains("supervisor"), "{name} reaches the supervisor");
        }
        for layer in LAYERS {
            for below in layer.stands_on.iter().filter(|below| **below != layer.name) {
                assert!(!reach(below).contains(layer.name), "{} and {below} stand on each other", layer.name);
            }
        }
    }
}
