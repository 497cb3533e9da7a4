//! Law 1: the permitted dependencies between packages.
//!
//! ```text
//! abi <- machine <- drivers <- supervisor (policy; also on its core)
//!   \
//!    <- platform, grid <- cell <- net, fs, storage <- linux, application library <- apps
//!        (on iobuf)     \
//!                        <- bare (also on machine and drivers), hosted <- gateway (also on net, fs)
//! ```
//!
//! [`LAYERS`] has the law: a layer is a set of folders with the list of layers on which it may depend. A package
//! belongs to the layer with the longest folder that contains it. A folder that does not exist is a violation, so that
//! the table describes the tree as it is. Dependencies for tests are exempt, with one
//! exception: the supervisor and the packages for cells share `abi` only, also in tests.

use cargo_metadata::{DependencyKind, Package};
use proc_macro2::{TokenStream, TokenTree};

use super::{Check, Findings};
use crate::error::Error;
use crate::source;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "layering",
    about: "packages depend on the layers below them, and on no others",
    remedy: "define a trait in the lower layer and register the upper layer's implementation; add a new folder to \
             xtask/src/check/layering.rs, with the reason in docs/decisions/",
    run,
};

/// A set of folders with permitted dependencies.
struct Layer {
    name: &'static str,
    /// The folders of its packages.
    folders: &'static [&'static str],
    /// The layers on which its packages may depend. Its own name permits dependencies between its packages.
    may_use: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer { name: "abi", folders: &["abi"], may_use: &[] },
    // The supervisor's side of the trust boundary.
    Layer { name: "machine", folders: &["machine"], may_use: &["abi"] },
    Layer { name: "drivers", folders: &["drivers"], may_use: &["abi", "machine"] },
    // The trusted core of the supervisor, and that core on hardware (docs/decisions/0062-supervisor-core-and-policy.md).
    Layer { name: "supervisor core", folders: &["supervisor/core"], may_use: &["abi"] },
    Layer {
        name: "supervisor core machine",
        folders: &["supervisor/core/machine"],
        may_use: &["abi", "machine", "supervisor core", "fault injection"],
    },
    // A machine for tests. No layer may depend on it but for tests.
    Layer { name: "supervisor fake", folders: &["supervisor/fake"], may_use: &["abi", "supervisor core"] },
    // Policy and services, and the image.
    Layer {
        name: "supervisor",
        folders: &["supervisor"],
        may_use: &["abi", "machine", "drivers", "supervisor core", "supervisor core machine", "image link"],
    },
    // Illegal accesses, in images that tests and the demo crash.
    Layer { name: "fault injection", folders: &["machine/fault-injection"], may_use: &["abi", "machine"] },
    // The dependency of images' build scripts, without code in the image.
    Layer { name: "image link", folders: &["machine/link"], may_use: &[] },
    // The cell's side.
    // The order of requests, without knowledge of cells.
    Layer { name: "grid", folders: &["grid"], may_use: &["abi"] },
    Layer { name: "iobuf", folders: &["cell/iobuf"], may_use: &[] },
    // Copies of memory that others access at the same time, without knowledge of cells.
    Layer { name: "atomic memcpy", folders: &["cell/atomic-memcpy"], may_use: &[] },
    Layer { name: "platform", folders: &["cell/platform"], may_use: &["abi", "iobuf"] },
    Layer {
        name: "cell",
        folders: &["cell"],
        may_use: &["abi", "iobuf", "atomic memcpy", "platform", "grid", "cell"],
    },
    Layer {
        name: "bare",
        folders: &["cell/bare"],
        may_use: &["abi", "iobuf", "platform", "cell", "machine", "drivers"],
    },
    Layer { name: "hosted", folders: &["cell/hosted"], may_use: &["abi", "iobuf", "platform", "cell"] },
    Layer {
        name: "services",
        folders: &["net", "fs", "storage"],
        may_use: &["abi", "iobuf", "platform", "cell", "link", "services"],
    },
    // Rings between cells and the device side of virtio, which know no cell and share their copies; and channels over them.
    Layer {
        name: "link rings",
        folders: &["link/rings", "link/virtio"],
        may_use: &["atomic memcpy", "link rings"],
    },
    Layer { name: "link", folders: &["link"], may_use: &["abi", "iobuf", "platform", "cell", "link rings"] },
    // The switch between cells, and address translation behind it, which know no cell.
    Layer { name: "switch", folders: &["net/switch", "net/nat"], may_use: &["switch"] },
    // Service cells: devices of a cell for others, over links.
    Layer {
        name: "link services",
        folders: &["link/folders", "link/service"],
        may_use: &[
            "abi",
            "iobuf",
            "platform",
            "cell",
            "services",
            "link",
            "link rings",
            "link services",
            "switch",
        ],
    },
    // The connection of a hosted cell to its host: sockets, files.
    Layer {
        name: "gateway",
        folders: &["net/gateway", "fs/export"],
        may_use: &["abi", "iobuf", "platform", "cell", "services", "hosted"],
    },
    // The Linux personality.
    Layer {
        name: "linux",
        folders: &["linux"],
        may_use: &["abi", "iobuf", "platform", "cell", "services", "linux"],
    },
    // Simulated networks, disks and cells for tests. No layer that ships may depend on it.
    Layer {
        name: "simulations",
        folders: &["cell/test-task", "net/sim", "net/test-cells", "storage/sim", "linux/sim", "link/sim"],
        may_use: &["abi", "iobuf", "platform", "cell", "services", "hosted", "linux", "simulations"],
    },
    // The library of applications, the only crate that selects the platform.
    Layer {
        name: "application library",
        folders: &["cell/app"],
        may_use: &[
            "abi",
            "iobuf",
            "platform",
            "cell",
            "link",
            "link services",
            "services",
            "bare",
            "hosted",
            "gateway",
        ],
    },
    Layer {
        name: "apps",
        folders: &["apps"],
        may_use: &[
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
    // The application that fails on purpose.
    Layer {
        name: "faulty",
        folders: &["apps/faulty"],
        may_use: &["application library", "fault injection", "image link"],
    },
    // Images that test single layers on a machine.
    Layer {
        name: "test images",
        folders: &["tests/images"],
        may_use: &[
            "abi",
            "machine",
            "drivers",
            "fault injection",
            "iobuf",
            "platform",
            "cell",
            "bare",
            "services",
            "application library",
            "image link",
        ],
    },
    // Applications beside each other in one cell.
    Layer {
        name: "tenants",
        folders: &["tests/images/tenants"],
        may_use: &["application library", "apps", "image link"],
    },
    // Programs on the user's machine.
    Layer { name: "root images", folders: &["host/root-image"], may_use: &[] },
    Layer { name: "host", folders: &["host"], may_use: &["abi", "root images", "switch"] },
    // The tests' prerequisites and claims: crates that depend on no package of the tree.
    Layer { name: "test tools", folders: &["tests/need", "tests/proves"], may_use: &[] },
    Layer { name: "tests", folders: &["tests"], may_use: &["abi", "host", "test tools"] },
    // Fuzz targets cover both sides of the trust boundary, each separately.
    Layer {
        name: "fuzz",
        folders: &["fuzz"],
        may_use: &[
            "abi",
            "machine",
            "supervisor core",
            "host",
            "iobuf",
            "cell",
            "link rings",
            "switch",
            "link services",
            "services",
            "linux",
            "simulations",
            "apps",
        ],
    },
    // The benchmarks' peers of an application do the same work with the same code.
    Layer { name: "benches", folders: &["benches"], may_use: &["abi", "host", "apps"] },
    Layer { name: "xtask", folders: &["xtask"], may_use: &["test tools"] },
];

/// The layers on the supervisor's side of the trust boundary.
const SUPERVISOR_SIDE: &[&str] =
    &["supervisor core", "supervisor core machine", "supervisor fake", "supervisor"];

/// The layers on the cell's side of the trust boundary.
const CELL_SIDE: &[&str] = &[
    "iobuf",
    "atomic memcpy",
    "platform",
    "cell",
    "bare",
    "hosted",
    "services",
    "gateway",
    "linux",
    "simulations",
    "application library",
    "apps",
    "faulty",
];

/// A dependency between two packages.
struct Edge<'a> {
    from: &'a str,
    from_folder: &'a str,
    to: &'a str,
    to_folder: &'a str,
    kind: DependencyKind,
}

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let members = workspace.members();
    let mut failures = absent_folders(|folder| workspace.root().join(folder).is_dir());
    for package in &members {
        let folder = workspace.folder(package);
        if layer_of(&folder).is_none() {
            failures.push(format!("{} is in {folder}, which belongs to no layer", package.name));
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

/// Returns the violations of layers that name a folder for which `exists` is false.
fn absent_folders(exists: impl Fn(&str) -> bool) -> Vec<String> {
    let folders =
        LAYERS.iter().flat_map(|layer| layer.folders.iter().map(move |folder| (layer.name, *folder)));
    folders
        .filter(|(_, folder)| !exists(folder))
        .map(|(layer, folder)| format!("the layer {layer:?} names the folder {folder}, which does not exist"))
        .collect()
}

/// The only items of lower packages that a package's sources may name in `pub use` or `pub extern crate`.
struct Exports {
    folder: &'static str,
    /// Crates with items that give access to the machine.
    of: &'static [&'static str],
    /// The allowed paths, as written in the source.
    allowed: &'static [&'static str],
}

/// Applications cannot name the machine layer: their library exports only these items of the platforms, and the bare
/// platform only these of the machine layer.
const EXPORTS: &[Exports] = &[
    Exports {
        folder: "cell/app/src/",
        of: &["isola_bare", "isola_hosted", "isola_machine", "isola_drivers"],
        allowed: &[
            "isola_bare::cell_image",
            // The same macro for images of cells only, by the same name; spaces are left out.
            "isola_bare::cells_only_imageascell_image",
            "isola_bare::heap::CellHeap",
            "isola_hosted::heap::CellHeap",
            "isola_hosted::process",
        ],
    },
    Exports {
        folder: "cell/bare/src/",
        of: &["isola_machine", "isola_drivers"],
        allowed: &["isola_machine::cell_image", "isola_machine::cells_only_image"],
    },
];

/// Returns the public re-exports in a file that are not allowed.
fn leaks(relative: &str, tokens: &TokenStream, exports: &Exports) -> Vec<String> {
    public_uses(tokens.clone())
        .into_iter()
        .filter(|(_, path)| exports.of.iter().any(|name| mentions(path, name)))
        .filter(|(_, path)| !exports.allowed.contains(&path.replace(' ', "").as_str()))
        .map(|(line, path)| {
            format!("{relative}:{line}: exports {path}: an application could access the machine with it")
        })
        .collect()
}

/// Returns whether a path, in the form of [`public_uses`], contains a name.
fn mentions(path: &str, name: &str) -> bool {
    path.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).any(|word| word == name)
}

/// Returns line and path, with spaces between tokens, of each `use` and `extern crate` with a visibility, at any depth.
fn public_uses(tokens: TokenStream) -> Vec<(usize, String)> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => found.extend(public_uses(group.stream())),
            TokenTree::Ident(word) if word == "pub" => {
                let mut rest = trees[at + 1..].iter().peekable();
                // `pub(crate)` exports nothing.
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

/// Returns the packages of the tree that `package` depends on, including optional ones and those of other targets.
fn own_dependencies<'a>(package: &Package, members: &[&'a Package]) -> Vec<(&'a Package, DependencyKind)> {
    let mut found = Vec::new();
    for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
        if let Some(member) = members.iter().find(|member| member.name.as_str() == dependency.name) {
            found.push((*member, dependency.kind));
        }
    }
    found
}

/// Returns the violation of `edge`, if any.
fn judge(edge: &Edge) -> Option<String> {
    let from = layer_of(edge.from_folder)?;
    let to = layer_of(edge.to_folder)?;
    let Edge { from: from_name, to: to_name, .. } = edge;
    if edge.kind == DependencyKind::Development {
        return crosses_the_wall(from, to).then(|| {
            format!("{from_name} depends on {to_name} in tests: supervisor and cells share only abi")
        });
    }
    (!from.may_use.contains(&to.name)).then(|| {
        let allowed = if from.may_use.is_empty() { "nothing".into() } else { from.may_use.join(", ") };
        format!("{from_name} ({}) depends on {to_name} ({}); it may depend on: {allowed}", from.name, to.name)
    })
}

fn crosses_the_wall(from: &Layer, to: &Layer) -> bool {
    let pair = [from.name, to.name];
    let is_on = |side: &[&str]| pair.iter().any(|name| side.contains(name));
    is_on(SUPERVISOR_SIDE) && is_on(CELL_SIDE)
}

/// Returns the layer of the package in `folder`: that with the longest folder that contains it.
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
    fn the_table_permits_and_forbids_dependencies_as_designed() {
        for (from, to) in [
            ("machine", "abi"),
            ("drivers", "machine"),
            ("supervisor", "drivers"),
            ("supervisor", "supervisor/core"),
            ("supervisor", "supervisor/core/machine"),
            ("supervisor/core/machine", "supervisor/core"),
            ("supervisor/fake", "supervisor/core"),
            ("fuzz", "supervisor/core"),
            ("cell/platform", "cell/iobuf"),
            ("cell/events", "cell/platform"),
            ("cell/bare", "machine"),
            ("cell/bare", "drivers"),
            ("net/stack", "cell/events"),
            ("fs/remote", "net/messenger"),
            ("cell/app", "cell/bare"),
            ("cell/app", "net/sockets"),
            ("cell/app", "net/gateway"),
            ("net/gateway", "cell/hosted"),
            ("net/test-cells", "cell/hosted"),
            ("net/sim", "net/stack"),
            ("fuzz", "net/sim"),
            ("apps/kv", "cell/app"),
            ("tests/images/crash", "cell/app"),
            ("tests/images/hello", "machine"),
            ("tests/images/hello", "machine/link"),
            ("apps/kv", "machine/link"),
            ("apps/faulty", "machine/fault-injection"),
            ("tests", "host"),
            ("host", "abi"),
            ("host", "host/root-image"),
        ] {
            assert!(allowed(from, to), "{from} -> {to} is allowed");
        }
        for (from, to) in [
            ("abi", "machine"),
            ("machine", "drivers"),
            ("machine", "machine/fault-injection"),
            ("cell/bare", "machine/fault-injection"),
            ("apps/kv", "machine/fault-injection"),
            ("drivers", "supervisor"),
            ("drivers", "cell/iobuf"),
            ("supervisor", "cell/platform"),
            ("supervisor", "supervisor/fake"),
            ("supervisor/core", "supervisor"),
            ("supervisor/core", "machine"),
            ("supervisor/core", "supervisor/core/machine"),
            ("supervisor/core", "supervisor/fake"),
            ("supervisor/core/machine", "drivers"),
            ("supervisor/core/machine", "supervisor/fake"),
            ("cell/bare", "supervisor"),
            ("apps/kv", "supervisor"),
            ("tests/images/hello", "supervisor"),
            ("net/stack", "machine/link"),
            ("cell/events", "machine"),
            ("cell/events", "cell/bare"),
            ("cell/events", "net/stack"),
            ("cell/iobuf", "cell/platform"),
            ("cell/platform", "cell/events"),
            ("net/stack", "drivers"),
            ("net/stack", "cell/app"),
            ("net/sockets", "cell/hosted"),
            ("net/sockets", "net/gateway"),
            ("apps/kv", "net/gateway"),
            ("apps/kv", "net/test-cells"),
            ("net/gateway", "net/test-cells"),
            ("net/stack", "net/sim"),
            ("cell/app", "net/sim"),
            ("apps/kv", "apps/primes"),
            ("apps/kv", "cell/bare"),
            ("host", "machine"),
            ("xtask", "abi"),
        ] {
            assert!(!allowed(from, to), "{from} -> {to} breaks the law");
        }
    }

    #[test]
    fn the_library_of_applications_exports_no_access_to_the_machine() {
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
    fn test_dependencies_are_exempt_except_across_the_trust_boundary() {
        assert_eq!(verdict("cell/iobuf", "cell/events", DependencyKind::Development), None);
        assert_eq!(verdict("net/sockets", "net/test-cells", DependencyKind::Development), None);
        assert!(verdict("supervisor", "cell/memory", DependencyKind::Development).is_some());
        assert!(verdict("apps/kv", "supervisor", DependencyKind::Development).is_some());
        assert!(verdict("apps/kv", "supervisor/core", DependencyKind::Development).is_some());
        assert_eq!(verdict("supervisor/core", "supervisor/fake", DependencyKind::Development), None);
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

    #[test]
    fn a_layer_whose_folder_does_not_exist_is_a_violation() {
        assert_eq!(absent_folders(|_| true), [""; 0]);
        let failures = absent_folders(|folder| folder != "fs");
        assert_eq!(failures, [r#"the layer "services" names the folder fs, which does not exist"#]);
    }

    /// Returns all layers that packages of `name` can reach.
    fn reach(name: &'static str) -> BTreeSet<&'static str> {
        let mut found = BTreeSet::new();
        let mut open = vec![name];
        while let Some(next) = open.pop() {
            let layer = LAYERS.iter().find(|layer| layer.name == next).expect("the table names known layers");
            open.extend(layer.may_use.iter().filter(|below| found.insert(**below)));
        }
        found
    }

    #[test]
    fn no_path_in_the_table_crosses_the_trust_boundary_or_forms_a_cycle() {
        for side in SUPERVISOR_SIDE {
            assert!(CELL_SIDE.iter().all(|name| !reach(side).contains(name)), "{side} reaches a cell");
            assert!(CELL_SIDE.iter().all(|name| !reach(name).contains(side)), "a cell reaches {side}");
        }
        for layer in LAYERS {
            for below in layer.may_use.iter().filter(|below| **below != layer.name) {
                assert!(
                    !reach(below).contains(layer.name),
                    "{} and {below} depend on each other",
                    layer.name
                );
            }
        }
    }
}
