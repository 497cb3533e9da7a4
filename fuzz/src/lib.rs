//! Fuzz targets: the parsers and state machines that take bytes from outside, each as a function of bytes.
//!
//! A target panics if the code under test violates a guarantee. Three drivers run the same [`TARGETS`]:
//!
//! - `cargo xtask fuzz` links them with libFuzzer (`driver/`, a package outside the workspace, as it needs a C++
//!   compiler and instrumented builds);
//! - `tests/` runs them on the corpus (`corpus/TARGET`, inputs that libFuzzer found) and on random bytes;
//! - the property tests of some crates run them on nearly valid input.

pub mod acpi;
pub mod applications;
pub mod conversation;
pub mod folders;
pub mod image;
mod input;
pub mod kv;
pub mod links;
pub mod linux;
pub mod linux_calls;
mod linux_cell;
pub mod management;
pub mod messages;
pub mod metrics;
pub mod nat;
pub mod resolver;
pub mod stack;
pub mod storage;
pub mod web;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name: the parser's crate or protocol, then the kind of input.
    pub name: &'static str,
    /// Runs the code under test on an input.
    pub run: fn(&[u8]),
}

/// All targets, sorted by name.
pub const TARGETS: &[Target] = &[
    Target { name: "acpi_tables", run: acpi::tables },
    Target { name: "dns_answers", run: resolver::answers },
    Target { name: "dns_lookups", run: resolver::lookups },
    Target { name: "files_messages", run: messages::files },
    Target { name: "files_requests", run: applications::files },
    Target { name: "folders_answers", run: folders::answers },
    Target { name: "folders_requests", run: folders::requests },
    Target { name: "image_host", run: image::host },
    Target { name: "image_supervisor", run: image::supervisor },
    Target { name: "kv_binary", run: kv::binary },
    Target { name: "kv_session", run: kv::session },
    Target { name: "kv_stream", run: kv::stream },
    Target { name: "kv_text", run: kv::text },
    Target { name: "link_driver", run: links::driver },
    Target { name: "link_network", run: links::network },
    Target { name: "link_rings", run: links::ring },
    Target { name: "linux_calls", run: linux_calls::calls },
    Target { name: "linux_memory", run: linux::memory },
    Target { name: "management_descriptor", run: management::descriptor },
    Target { name: "management_facts", run: management::facts },
    Target { name: "management_requests", run: management::requests },
    Target { name: "management_responses", run: management::responses },
    Target { name: "metrics_requests", run: metrics::requests },
    Target { name: "net_conversations", run: conversation::conversation },
    Target { name: "net_dhcp", run: stack::dhcp },
    Target { name: "net_dhcp6", run: stack::dhcp6 },
    Target { name: "net_frames", run: stack::frames },
    Target { name: "net_nat", run: nat::frames },
    Target { name: "net_packets", run: stack::packets },
    Target { name: "net_segments", run: stack::segments },
    Target { name: "primes_requests", run: applications::primes },
    Target { name: "storage_ext4", run: storage::ext4 },
    Target { name: "web_archives", run: web::archives },
    Target { name: "web_fields", run: web::fields },
    Target { name: "web_requests", run: web::requests },
];
