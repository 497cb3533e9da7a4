//! Metrics of a machine and its cells, in the text formats of OpenMetrics and Prometheus.
//!
//! | module | contents |
//! |---|---|
//! | [`catalogue`] | all metric families: names, units, labels, help texts |
//! | [`collect`] | requests to the supervisor and queries to the cells, with time limits |
//! | [`machine`], [`cell`], [`grid`] | the values of a reading by family |
//! | [`histogram`] | a cell's distributions in buckets of seconds |
//! | [`series`] | values by family and labels; their text and JSON forms |
//! | [`server`], [`request`] | the HTTP server |
//! | [`reading_thread`] | one reading at a time for any number of requests |
//!
//! Cells are not trusted: they choose activity names, counter names and counts. [`series`] bounds and escapes labels,
//! [`collect`] bounds the number of series of a cell. The crate `prometheus-client` writes the text formats.
//!
//! Not here: the command (`cli::metrics`), and the Grafana dashboard (`host/dashboards`).

pub mod catalogue;
pub mod cell;
pub mod collect;
pub mod grid;
pub mod histogram;
pub mod machine;
pub mod reading_thread;
pub mod request;
pub mod series;
pub mod server;

pub use series::{Metrics, TextFormat};
