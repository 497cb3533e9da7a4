//! An HTTP/1.1 server of static files (RFC 9110, RFC 9112). The image adds arguments and the source of the files.
//!
//! ```text
//!   archive, or a host's files ──> SiteBuilder ──> Site: built once, read by all cores
//!                                                    │
//!   frames ──> Session::receive ── Session::serve ───┴──> Session::take_output ──> frames
//!              a head, in the received buffer             views of the site's memory
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`site`] | the files, each preceded by the fields of its response |
//! | [`archive`] | a site from a tar archive |
//! | [`head`] | the head of a request, parsed by `httparse` |
//! | [`condition`], [`range`] | conditional requests and ranges |
//! | [`response`] | status lines and fields of responses |
//! | [`requests`] | received data, divided into heads |
//! | [`session`] | a connection without I/O |
//! | [`server`] | a connection with its socket and its timeouts |
//! | [`volume_site`], [`volume_server`] | files of a volume, opened on demand, and the connections to them |
//!
//! A file is sent without a copy of its content, and without an allocation for its response. The response is two views:
//! a preface (status and date) that each core creates once a second, and memory that contains the file right after its
//! own fields. For a short file the whole response is one view, which a core creates once a second. Paths are keys of a
//! table that is built once: no request can name a file outside of it.
//!
//! Not supported are request bodies, methods other than GET and HEAD, several ranges at once (the response is the whole
//! file), compression, and TLS.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod archive;
pub mod condition;
pub mod date;
pub mod head;
mod mime;
pub mod range;
pub mod requests;
pub mod response;
pub mod server;
pub mod session;
pub mod site;
mod timeout;
pub mod volume_server;
pub mod volume_site;

pub use archive::ArchiveError;
pub use response::Prefaces;
pub use server::serve;
pub use session::Session;
pub use site::{Site, SiteBuilder, SiteError};
