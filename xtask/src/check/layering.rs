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
use proc_macro2::{TokenStream, TokenTree};

use super::{Check, Findings};
use crate::error::Error;
use crate::source;
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
    for path in workspace.files_ending_in(&["rs"])? {
        let relative = workspace.relative(&path);
        let exports = EXPORTS.iter().filter(|exports| relative.starts_with(exports.folder));
        for exports in exports {
            failures.extend(leaks(&relative, &source::tokens(&path)?, exports));
        }
    }
    Ok(Findings::of(failures))
}

/// The only items of packages below that a package's sources may name in `pub use`, or in `pub extern crate`.
struct Exports {
    folder: &'static str,
    /// Crates whose items lead to the machine.
    of: &'static [&'static str],
    /// The paths that are allowed, each as it is written.
    allowed: &'static [&'static str],
}

/// Applications cannot name the machine: the crate that they depend on exports these items of the platforms, and
/// the bare platform these of the machine.
const EXPORTS: &[Exports] = &[
    Exports {
        folder: "cell/app/src/",
        of: &["isola_bare", "isola_hosted", "isola_machine", "isola_drivers"],
        allowed: &[
            "isola_bare::cell_image",
            "isola_bare::heap::CellHeap",
            "isola_bare::fault_injection",
            "isola_hosted::heap::CellHeap",
            "isola_hosted::process",
        ],
    },
    Exports {
        folder: "cell/bare/src/",
        of: &["isola_machine", "isola_drivers"],
        allowed: &["isola_machine::cell_image", "isola_machine::fault_injection::{InjectedFault,inject}"],
    },
];

/// The public re-exports in a file that are not allowed.
fn leaks(relative: &str, tokens: &TokenStream, exports: &Exports) -> Vec<String> {
    public_uses(tokens.clone())
        .into_iter()
        .filter(|(_, path)| exports.of.iter().any(|name| mentions(path, name)))
        .filter(|(_, path)| !exports.allowed.contains(&path.replace(' ', "").as_str()))
        .map(|(line, path)| {
            format!("{relative}:{line}: exports {path}: an application could reach the machine by it")
        })
        .collect()
}

/// Whether a path, as [`public_uses`] writes it, contains a name.
fn mentions(path: &str, name: &str) -> bool {
    path.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).any(|word| word == name)
}

/// The line and the path, in words, of each `use` and `extern crate` with a visibility, at any depth.
fn public_uses(tokens: TokenStream) -> Vec<(usize, String)> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => found.extend(public_uses(group.stream())),
            TokenTree::Ident(word) if word == "pub" => {
                let mut rest = trees[at + 1..].iter().peekable();
                // `pub(crate)` stays inside.
                if matches!(rest.peek(), Some(TokenTree::Group(_))) {
                    continue;
                }
                let keyword = rest.next().map(ToString::to_string);
                if !matches!(keyword.as_deref(), Some("use" | "extern")) {
                    continue;
                }
                let path = rest.take_while(|tree| tree.to_string() != ";").map(ToString::to_string);
                found.push((word.span().start().line, path.collect::<Vec<_>>().join(" ")));
            }
            _ => {}
        }
    }
    found
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
    fn what_applications_depend_on_leads_to_no_machine() {
        let judge = |text: &str| leaks("cell/app/src/x.rs", &text.parse().unwrap(), &EXPORTS[0]).len();
        for lawful in [
            "pub use isola_bare::heap::CellHeap; pub use isola_bare::cell_image;",
            "use isola_bare::machine; pub(crate) use isola_bare as bare;",
            "pub use isola_events as events; // pub use isola_bare;",
        ] {
            assert_eq!(judge(lawful), 0, "{lawful}");
        }
        for leak in [
            "pub use isola_bare as bare;",
            "pub use isola_bare::machine;",
            "pub use ::isola_machine::power;",
            "pub use isola_bare::*;",
            "pub use {isola_bare::heap::CellHeap, isola_bare::platform};",
            "#[doc(hidden)] pub extern crate isola_bare;",
            "pub mod __private { pub mod deep { pub use isola_bare::start; } }",
        ] {
            assert_eq!(judge(leak), 1, "{leak}");
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
