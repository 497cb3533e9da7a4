//! The JSON form of a hosted cell.

use serde::Serialize;

/// A cell in a Linux process: what is known of it from outside.
#[derive(Clone, Debug, Serialize)]
pub struct HostedView {
    /// Always null: it is on no machine of a supervisor.
    pub machine: Option<String>,
    /// Its name.
    pub name: String,
    /// Always `running`: one that has ended is gone.
    pub state: &'static str,
}

impl HostedView {
    /// The JSON form of one that runs.
    pub fn running(name: &str) -> Self {
        Self { machine: None, name: name.to_owned(), state: "running" }
    }
}
