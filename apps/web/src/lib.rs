//! An HTTP/1.1 server of static files (RFC 9110, RFC 9112): all of it but arguments and where the files come from.
//!
//! ```text
//!   archive, or a host's files ──> SiteBuilder ──> Site: made once, read by all cores
//!                                                    │
//!   frames ──> Session::receive ── Session::serve ───┴──> Session::take_output ──> frames
//!              a head, where it came                      views of the site's memory
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`site`] | the files, each with its response's fields before it |
//! | [`archive`] | a site out of a tar archive |
//! | [`head`] | a request's head, by `httparse` |
//! | [`condition`], [`range`] | what a client has already, and which part it wants |
//! | [`response`] | what goes before a file |
//! | [`session`] | a connection without I/O |
//! | [`server`] | a connection with its sockets and its patience |
//!
//! A file is sent without a copy, and without an allocation for its response: two views, of a line that a core makes once a second (status and
//! date) and of memory in which the file stands right behind its own fields. A short file's whole response is one view, which a
//! core makes once a second. Paths are keys of a table that is made
//! once: no request can name what is not in it.
//!
//! What is not served: request bodies, other methods than GET and HEAD, several ranges at once (the whole file comes
//! then), compression, TLS.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod archive;
pub mod condition;
pub mod date;
pub mod head;
mod mime;
pub mod range;
pub mod response;
pub mod server;
pub mod session;
pub mod site;
mod watch;

pub use archive::ArchiveError;
pub use response::Prefaces;
pub use server::serve;
pub use session::Session;
pub use site::{Site, SiteBuilder, SiteError};
