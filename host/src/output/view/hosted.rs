//! The JSON form of a hosted cell.

use serde::Serialize;

/// A cell in a Linux process, as far as it is visible from outside.
#[derive(Clone, Debug, Serialize)]
pub struct HostedView {
    /// Always null: it is not on a machine with a supervisor.
    pub machine: Option<String>,
    /// The name.
    pub name: String,
    /// Always `running`: an ended one is not listed.
    pub state: &'static str,
}

impl HostedView {
    /// Creates the JSON form of a running hosted cell.
    pub fn running(name: &str) -> Self {
        Self { machine: None, name: name.to_owned(), state: "running" }
    }
}
