//! The files of a directory on a volume, opened on demand.
//!
//! All of a volume is on one core, and so are the open files of the site: the other cores send requests there. An entry
//! of the table is a path with its open file and the fields of its response. It is valid while neither names of the
//! volume nor the contents of the file have changed, which two counters of the volume say; so a file that another
//! activity of the cell replaces is served anew from the next request on.
//!
//! The table holds no contents: these are in the volume's block cache.

use crate::condition::{self, Outcome, Validators};
use crate::date::{self, UnixSeconds};
use crate::head::{Head, Method, Persistence};
use crate::mime;
use crate::range::{self, RangeRequest};
use crate::response::{Prefaces, Status};
use crate::session::{page, text};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt::Write;
use core::ops::Range;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_volumes::{File, FileError, FileKind, FileSource, OpenedFile, SharedFile, Volume};
use percent_encoding::percent_decode_str;

/// The most open files of a site. Each takes less than 1 KiB, and 12 KiB if it is in very many pieces.
pub const MOST_OPEN: usize = 256;

/// The longest body that is taken from the cache with its head. Longer ones, and those that are not in the cache, flow.
const MOST_TOGETHER: usize = 32 << 10;

/// The longest response that is copied into one buffer, which an entry keeps for a second: up to it, the copy takes fewer
/// instructions than further views take in the stack and the device.
const LONGEST_COPIED: usize = 2048;

/// A tag made within this time after the file's change is weak: another change may have the same time (RFC 9110,
/// 8.8.2.2).
const SETTLED_AFTER_S: u64 = 2;

/// The file that represents its directory.
const INDEX: &str = "index.html";

/// The file that is sent for unknown paths.
const NOT_FOUND: &[u8] = b"/404.html";

/// The directory of a file system's root for files that `e2fsck` finds.
const LOST_AND_FOUND: &[u8] = b"/lost+found";

/// A request that is served by another event or core than the one that has received it.
#[derive(Debug)]
pub struct Request {
    method: Method,
    persistence: Persistence,
    target: String,
    conditions: Option<Box<Conditions>>,
}

/// The fields that most requests lack.
#[derive(Debug, Default)]
struct Conditions {
    if_match: Option<Vec<u8>>,
    if_unmodified_since: Option<Vec<u8>>,
    if_none_match: Option<Vec<u8>>,
    if_modified_since: Option<Vec<u8>>,
    if_range: Option<Vec<u8>>,
    range: Option<Vec<u8>>,
}

impl Request {
    /// Copies a request's head.
    pub fn new(head: &Head<'_>) -> Self {
        let fields = [
            head.if_match,
            head.if_unmodified_since,
            head.if_none_match,
            head.if_modified_since,
            head.if_range,
            head.range,
        ];
        let conditions = fields.iter().any(Option::is_some).then(|| {
            let [if_match, if_unmodified_since, if_none_match, if_modified_since, if_range, range] =
                fields.map(|field| field.map(<[u8]>::to_vec));
            Box::new(Conditions {
                if_match,
                if_unmodified_since,
                if_none_match,
                if_modified_since,
                if_range,
                range,
            })
        });
        let Head { method, persistence, target, .. } = *head;
        Self { method, persistence, target: target.to_string(), conditions }
    }

    /// Returns whether the connection remains open.
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    fn head(&self) -> Head<'_> {
        let field = |of: fn(&Conditions) -> &Option<Vec<u8>>| {
            self.conditions.as_deref().and_then(|conditions| of(conditions).as_deref())
        };
        Head {
            method: self.method,
            target: &self.target,
            persistence: self.persistence,
            if_match: field(|it| &it.if_match),
            if_unmodified_since: field(|it| &it.if_unmodified_since),
            if_none_match: field(|it| &it.if_none_match),
            if_modified_since: field(|it| &it.if_modified_since),
            if_range: field(|it| &it.if_range),
            range: field(|it| &it.range),
        }
    }

    /// Returns the path without its query.
    fn path(&self) -> &str {
        path_of(&self.target)
    }
}

fn path_of(target: &str) -> &str {
    target.split(['?', '#']).next().unwrap_or_default()
}

/// The part of a file that follows the head of a response.
#[derive(Debug)]
pub struct Body<F> {
    file: F,
    version: u64,
    part: Range<u64>,
}

impl<F> Body<F> {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.part.end - self.part.start
    }
}

impl Body<Rc<OpenEntry>> {
    /// Returns a source of the body, which fails if the file changes.
    pub fn source(&self) -> FileSource {
        self.file.file.source(self.part.start).of_version(self.version)
    }

    /// Returns the body for another core.
    pub fn share(self) -> Body<SharedFile> {
        let Self { file, version, part } = self;
        Body { file: file.file.share(), version, part }
    }
}

impl Body<SharedFile> {
    /// Returns a source of the body, which fails if the file changes.
    pub fn source(&self) -> FileSource {
        self.file.source(self.part.start).of_version(self.version)
    }
}

/// A response: its head with what follows it at once, and the rest of the body.
#[derive(Debug)]
pub struct Response<F> {
    /// The head, and a short body.
    pub head: Chain,
    /// The body, if it is not with the head.
    pub body: Option<Body<F>>,
}

/// An open file with the fields of its response.
#[derive(Debug)]
pub struct OpenEntry {
    file: Rc<File>,
    /// The counters for which the entry is valid.
    names_version: u64,
    version: u64,
    len: u64,
    media: &'static str,
    tag: String,
    modified: Option<UnixSeconds>,
    /// The fields of a response with the whole file, and the empty line.
    fields: IoBuf,
    /// The whole response of a second, if it is short.
    whole: RefCell<Option<(UnixSeconds, IoBuf)>>,
    /// Whether it was used since the hand of the clock was here.
    is_referenced: Cell<bool>,
}

impl Validators for OpenEntry {
    fn tag(&self) -> &str {
        &self.tag
    }

    fn modified(&self) -> Option<UnixSeconds> {
        self.modified
    }
}

impl OpenEntry {
    fn new(opened: OpenedFile, path: &[u8], names_version: u64, now: UnixSeconds) -> Self {
        let OpenedFile { file, metadata, version } = opened;
        let media = mime::type_of(core::str::from_utf8(path).unwrap_or_default());
        let seconds = metadata.modified.as_secs();
        let weak = if seconds + SETTLED_AFTER_S > now.0 { "W/" } else { "" };
        let tag = format!("{weak}\"{:x}-{seconds:x}-{:x}\"", metadata.len, metadata.id.0);
        let modified = (seconds > 0).then_some(UnixSeconds(seconds));
        let mut entry = Self {
            file: Rc::new(file),
            names_version,
            version,
            len: metadata.len,
            media,
            tag,
            modified,
            fields: IoBuf::from_static(&[]),
            whole: RefCell::default(),
            is_referenced: Cell::new(true),
        };
        entry.fields = text(&format!(
            "Content-Type: {media}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\n{}\r\n",
            entry.len,
            entry.validators()
        ));
        entry
    }

    fn validators(&self) -> String {
        let mut fields = format!("ETag: {}\r\n", self.tag);
        if let Some(modified) = self.modified {
            fields.push_str("Last-Modified: ");
            // Writing to a string cannot fail.
            let _ = date::write(&mut fields, modified);
            fields.push_str("\r\n");
        }
        fields
    }

    /// Returns the response of this second to a `GET` of a short file as one view; `None` if it was not made yet.
    fn whole(&self, prefaces: &Prefaces) -> Option<IoBuf> {
        let whole = self.whole.borrow();
        whole.as_ref().filter(|(at, _)| *at == prefaces.at()).map(|(_, response)| response.clone())
    }

    /// Makes a complete response one view if it is short, and keeps it.
    fn keep_whole(&self, response: &mut Response<Rc<Self>>, prefaces: &Prefaces) {
        if response.body.is_some() || response.head.len() > LONGEST_COPIED {
            return;
        }
        let mut whole = IoBufMut::with_room(0, response.head.len());
        whole.extend();
        if response.head.copy_to_slice(whole.data_mut()).is_some() {
            let whole = whole.freeze();
            self.whole.replace(Some((prefaces.at(), whole.clone())));
            response.head = whole.into();
        }
    }

    /// Adds a part of the file to a response: at once if it is short and in the cache.
    fn respond(self: &Rc<Self>, mut head: Chain, part: Range<u64>) -> Response<Rc<Self>> {
        let len = part.end - part.start;
        let together = usize::try_from(len).ok().filter(|len| *len <= MOST_TOGETHER);
        let before = head.len();
        let mut taken = 0;
        if let Some(len) = together
            && self.file.version() == self.version
        {
            taken = self.file.append_cached(part.start, len, &mut head).map_or(0, |read| read.len);
            debug_assert_eq!(head.len() - before, taken);
        }
        let rest = part.start + taken as u64..part.end;
        let body = (!rest.is_empty()).then(|| Body { file: self.clone(), version: self.version, part: rest });
        Response { head, body }
    }
}

/// The result of a path lookup.
enum Found {
    File(Rc<OpenEntry>),
    /// A directory whose path lacks the final slash.
    Directory,
    Nothing,
}

/// The site of a directory, on the core of its volume.
#[derive(Debug)]
pub struct VolumeSite {
    volume: Volume,
    /// The path of the directory in the volume, without a final slash.
    root: Vec<u8>,
    open: RefCell<OpenFiles>,
}

#[derive(Debug)]
struct OpenFiles {
    /// By path in the site, without an index's name.
    entries: HashMap<Box<[u8]>, Rc<OpenEntry>, FixedState>,
    /// The paths in the order in which the hand of the clock visits them.
    clock: VecDeque<Box<[u8]>>,
}

impl VolumeSite {
    /// Creates the site of a directory of a volume. `seed` makes the table's order unpredictable.
    ///
    /// # Errors
    /// [`FileError::NotADirectory`], and the errors of the volume.
    pub async fn new(volume: Volume, root: &str, seed: u64) -> Result<Self, FileError> {
        if volume.metadata(root).await?.kind != FileKind::Directory {
            return Err(FileError::NotADirectory);
        }
        let root = root.trim_end_matches('/').as_bytes().to_vec();
        let entries = HashMap::with_hasher(FixedState::with_seed(seed));
        let open = RefCell::new(OpenFiles { entries, clock: VecDeque::new() });
        Ok(Self { volume, root, open })
    }

    /// Returns the number of open files.
    pub fn open_count(&self) -> usize {
        self.open.borrow().entries.len()
    }

    /// Answers a request.
    pub async fn answer(&self, request: &Request, prefaces: &Prefaces) -> Response<Rc<OpenEntry>> {
        // Borrows a path without escapes.
        let path: alloc::borrow::Cow<'_, [u8]> = percent_decode_str(request.path()).into();
        let head = request.head();
        let found = match self.find_open(&path) {
            Some(entry) => Ok(Found::File(entry)),
            None => self.find(&path, prefaces.at()).await,
        };
        let only = |page: IoBuf| Response { head: page.into(), body: None };
        match found {
            Ok(Found::File(entry)) => file_response(&head, &entry, prefaces),
            Ok(Found::Directory) => {
                let fields = format!("Location: {}/\r\n", request.path());
                only(page(prefaces, Status::MovedPermanently, head.persistence, head.method, &fields))
            }
            Ok(Found::Nothing) => self.not_found(&head, prefaces).await,
            Err(_) => only(page(prefaces, Status::InternalServerError, head.persistence, head.method, "")),
        }
    }

    /// Answers a request without waiting, if its file is open, short and in the cache.
    pub fn answer_at_once(&self, head: &Head<'_>, prefaces: &Prefaces) -> Option<Chain> {
        let path: alloc::borrow::Cow<'_, [u8]> = percent_decode_str(path_of(head.target)).into();
        let entry = self.find_open(&path).filter(|entry| entry.len <= MOST_TOGETHER as u64)?;
        let Response { head, body } = file_response(head, &entry, prefaces);
        body.is_none().then_some(head)
    }

    async fn not_found(&self, head: &Head<'_>, prefaces: &Prefaces) -> Response<Rc<OpenEntry>> {
        let own = match self.find_open(NOT_FOUND) {
            Some(entry) => Some(entry),
            None => match self.find(NOT_FOUND, prefaces.at()).await {
                Ok(Found::File(entry)) => Some(entry),
                _ => None,
            },
        };
        let Some(own) = own else {
            let page = page(prefaces, Status::NotFound, head.persistence, head.method, "");
            return Response { head: page.into(), body: None };
        };
        let preface = prefaces.of(Status::NotFound, head.persistence);
        let (media, len) = (own.media, own.len);
        let fields = text(&format!("{preface}Content-Type: {media}\r\nContent-Length: {len}\r\n\r\n"));
        let len = if head.method == Method::Get { len } else { 0 };
        own.respond(fields.into(), 0..len)
    }

    /// Returns the open file of a path, if the table has it and it is valid.
    fn find_open(&self, path: &[u8]) -> Option<Rc<OpenEntry>> {
        let open = self.open.borrow();
        let entry = open.entries.get(path)?;
        let is_valid =
            entry.names_version == self.volume.names_version() && entry.version == entry.file.version();
        is_valid.then(|| {
            entry.is_referenced.set(true);
            entry.clone()
        })
    }

    /// Opens the file of a path, which is decoded and has no query.
    async fn find(&self, path: &[u8], now: UnixSeconds) -> Result<Found, FileError> {
        if !is_servable(path) || (self.root.is_empty() && is_below(path, LOST_AND_FOUND)) {
            return Ok(Found::Nothing);
        }
        let names_version = self.volume.names_version();
        let mut full = [&self.root, path].concat();
        let is_directory = path.ends_with(b"/");
        if is_directory {
            full.extend_from_slice(INDEX.as_bytes());
        }
        match self.volume.open_with_metadata(&full).await {
            Ok(opened) => {
                let entry = Rc::new(OpenEntry::new(opened, &full, names_version, now));
                self.open.borrow_mut().insert(path, entry.clone());
                Ok(Found::File(entry))
            }
            Err(FileError::IsADirectory) if !is_directory => {
                full.push(b'/');
                full.extend_from_slice(INDEX.as_bytes());
                match self.volume.metadata(&full).await {
                    Ok(index) if index.kind == FileKind::File => Ok(Found::Directory),
                    Ok(_) => Ok(Found::Nothing),
                    Err(error) => nothing_or(error),
                }
            }
            Err(error) => nothing_or(error),
        }
    }
}

/// Returns that there is no file for the errors that say so.
fn nothing_or(error: FileError) -> Result<Found, FileError> {
    match error {
        FileError::NotFound
        | FileError::NotADirectory
        | FileError::IsADirectory
        | FileError::InvalidName
        | FileError::Unsupported => Ok(Found::Nothing),
        error => Err(error),
    }
}

/// Returns whether a path can name a file: its parts are neither empty nor `.` or `..`, and it is absolute.
fn is_servable(path: &[u8]) -> bool {
    let Some(path) = path.strip_prefix(b"/") else { return false };
    let directory = path.strip_suffix(b"/").unwrap_or(path);
    let is_bad = |part: &[u8]| matches!(part, b"" | b"." | b"..") || part.contains(&0);
    path.is_empty() || !directory.split(|byte| *byte == b'/').any(is_bad)
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

impl OpenFiles {
    fn insert(&mut self, path: &[u8], entry: Rc<OpenEntry>) {
        if self.entries.insert(path.into(), entry).is_some() {
            return;
        }
        self.clock.push_back(path.into());
        while self.entries.len() > MOST_OPEN {
            let Some(path) = self.clock.pop_front() else { break };
            // A second chance (CLOCK).
            if self.entries.get(&path).is_some_and(|entry| entry.is_referenced.take()) {
                self.clock.push_back(path);
            } else {
                self.entries.remove(&path);
            }
        }
    }
}

fn file_response(head: &Head<'_>, entry: &Rc<OpenEntry>, prefaces: &Prefaces) -> Response<Rc<OpenEntry>> {
    let (persistence, method) = (head.persistence, head.method);
    let only = |page: IoBuf| Response { head: page.into(), body: None };
    match condition::evaluate(head, &**entry) {
        Outcome::Send => {}
        Outcome::NotModified => {
            let preface = prefaces.of(Status::NotModified, persistence);
            return only(text(&format!("{preface}{}\r\n", entry.validators())));
        }
        Outcome::Failed => return only(page(prefaces, Status::PreconditionFailed, persistence, method, "")),
    }
    // A range does not apply to HEAD (RFC 9110, 14.2).
    let range = head.range.filter(|_| method == Method::Get && condition::range_applies(head, &**entry));
    let len = usize::try_from(entry.len).unwrap_or(usize::MAX);
    match range.map_or(RangeRequest::Whole, |range| range::requested(range, len)) {
        RangeRequest::Whole => {
            let is_usual = method == Method::Get && persistence == Persistence::KeepAlive;
            if let Some(whole) = entry.whole(prefaces).filter(|_| is_usual) {
                return only(whole);
            }
            let mut response = Chain::from(prefaces.of_file(persistence));
            response.push_back(entry.fields.clone());
            let part = if method == Method::Get { 0..entry.len } else { 0..0 };
            let mut response = entry.respond(response, part);
            if is_usual {
                entry.keep_whole(&mut response, prefaces);
            }
            response
        }
        RangeRequest::Part(part) => {
            let preface = prefaces.of(Status::PartialContent, persistence);
            let mut fields = String::new();
            // Writing to a string cannot fail.
            let _ = write!(
                fields,
                "{preface}Content-Type: {}\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/{len}\r\n{}\r\n",
                entry.media,
                part.len(),
                part.start,
                part.end - 1,
                entry.validators()
            );
            entry.respond(text(&fields).into(), part.start as u64..part.end as u64)
        }
        RangeRequest::Unsatisfiable => {
            let fields = format!("Content-Range: bytes */{len}\r\n");
            only(page(prefaces, Status::RangeNotSatisfiable, persistence, method, &fields))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_are_looked_up() {
        for path in ["/", "/a", "/a/", "/a/b", "/.a", "/a..", "/a b", "/lost+found2"] {
            assert!(is_servable(path.as_bytes()), "{path}");
        }
        for path in
            ["", "a", "//", "/a//b", "/..", "/../a", "/a/..", "/a/../b", "/./a", "/a/.", "/a//", "/a\0"]
        {
            assert!(!is_servable(path.as_bytes()), "{path}");
        }
        assert!(is_below(b"/lost+found", LOST_AND_FOUND) && is_below(b"/lost+found/#12", LOST_AND_FOUND));
        assert!(!is_below(b"/lost+found2", LOST_AND_FOUND));
    }
}
