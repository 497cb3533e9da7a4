//! The files of a server, each ready to be sent.
//!
//! A site is built once and exists as long as its cell: its memory is never freed, so views of it need no reference
//! counting on any core. The content of a file of up to 64 KiB directly follows the fields of its response in memory:
//!
//! ```text
//!   Content-Type: ...\r\nContent-Length: ...\r\nETag: ...\r\n\r\n<!doctype html>...
//!   └──────────────────────── fields ────────────────────────┘└─── content ───
//!   └─────────────────────── the response to a GET, one view ─────────────────
//! ```

use crate::date::{self, UnixSeconds};
use crate::mime;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hasher;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use isola_iobuf::{Chain, IoBuf};
use siphasher::sip::SipHasher24;

/// The maximum length of a file that is copied after its fields, in bytes. Longer files are sent as a separate view.
const TOGETHER: usize = 64 << 10;

/// The file that represents its directory.
const INDEX: &str = "index.html";

/// The file that is sent for unknown paths.
const NOT_FOUND: &[u8] = b"/404.html";

/// The reasons why a site cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteError {
    /// A name that no request can match.
    Name(String),
    /// Two files have the same name.
    Twice(String),
}

impl fmt::Display for SiteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                write!(f, "{name:?} cannot be served: its parts may be neither empty nor . or .., rename it")
            }
            Self::Twice(name) => write!(f, "there are two files {name:?}: take one of them out"),
        }
    }
}

impl core::error::Error for SiteError {}

/// A file, and the fields of its response.
#[derive(Debug)]
pub struct File {
    /// Its index among the site's files.
    number: usize,
    /// The fields, followed by the content if that is short.
    fields: IoBuf,
    fields_len: usize,
    content: IoBuf,
    media: &'static str,
    tag: String,
    modified: Option<UnixSeconds>,
}

impl File {
    fn new(number: usize, name: &str, content: &'static [u8], modified: Option<UnixSeconds>) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(content);
        let tag = format!("\"{:x}-{:016x}\"", content.len(), hasher.finish());
        let mut file = Self {
            number,
            fields: IoBuf::from_static(&[]),
            fields_len: 0,
            content: IoBuf::from_static(content),
            media: mime::type_of(name),
            tag,
            modified,
        };
        let mut whole = format!(
            "Content-Type: {}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\n{}\r\n",
            file.media,
            content.len(),
            file.validators()
        )
        .into_bytes();
        file.fields_len = whole.len();
        if content.len() <= TOGETHER {
            whole.extend_from_slice(content);
            file.content = IoBuf::from_static(&[]);
        }
        let whole: &'static [u8] = Vec::leak(whole);
        file.fields = IoBuf::from_static(whole);
        if file.content.is_empty() {
            file.content = IoBuf::from_static(&whole[file.fields_len..]);
        }
        file
    }

    /// Returns the validators: the fields for later conditional requests.
    pub fn validators(&self) -> String {
        let mut fields = format!("ETag: {}\r\n", self.tag);
        if let Some(modified) = self.modified {
            fields.push_str("Last-Modified: ");
            // Writing to a string cannot fail.
            let _ = date::write(&mut fields, modified);
            fields.push_str("\r\n");
        }
        fields
    }

    /// Returns the entity tag, strong and with its quotation marks.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Returns the time of its last change, if that is known.
    pub fn modified(&self) -> Option<UnixSeconds> {
        self.modified
    }

    /// Returns the media type.
    pub fn media(&self) -> &'static str {
        self.media
    }

    /// Returns the content.
    pub fn content(&self) -> &IoBuf {
        &self.content
    }

    /// Returns the fields of a response, and the empty line.
    pub fn fields(&self) -> IoBuf {
        let mut fields = self.fields.clone();
        fields.truncate(self.fields_len);
        fields
    }

    /// Returns its number among the files of its site.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the fields, the empty line and the content, if they are contiguous.
    pub fn whole(&self) -> Option<&IoBuf> {
        (self.fields.len() == self.fields_len + self.content.len()).then_some(&self.fields)
    }

    /// Appends the fields, the empty line and the content.
    pub fn append_to(&self, out: &mut Chain) {
        out.push_back(self.fields.clone());
        if self.fields.len() == self.fields_len {
            out.push_back(self.content.clone());
        }
    }
}

/// The result of a path lookup.
#[derive(Clone, Copy, Debug)]
pub enum SiteEntry<'a> {
    /// A file.
    File(&'a File),
    /// A directory whose path lacks the final slash.
    Directory,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    File(usize),
    Directory,
}

/// The files of a server.
#[derive(Debug)]
pub struct Site {
    files: Vec<File>,
    paths: HashMap<Box<[u8]>, Target, FixedState>,
    not_found: Option<usize>,
    bytes: usize,
}

impl Site {
    /// Looks up a path, which is decoded and has no query.
    pub fn find(&self, path: &[u8]) -> Option<SiteEntry<'_>> {
        match self.paths.get(path)? {
            Target::File(file) => Some(SiteEntry::File(&self.files[*file])),
            Target::Directory => Some(SiteEntry::Directory),
        }
    }

    /// Returns the file that is sent for unknown paths, if the site has one: `404.html`.
    pub fn not_found(&self) -> Option<&File> {
        self.not_found.map(|file| &self.files[file])
    }

    /// Returns the number of files.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Returns the total length of all files, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }
}

/// Builds a [`Site`], file by file.
#[derive(Debug)]
pub struct SiteBuilder {
    site: Site,
}

impl SiteBuilder {
    /// Creates an empty site. `seed` makes the table's order unpredictable.
    pub fn new(seed: u64) -> Self {
        let paths = HashMap::with_hasher(FixedState::with_seed(seed));
        Self { site: Site { files: Vec::new(), paths, not_found: None, bytes: 0 } }
    }

    /// Adds a file. Its name is relative to the site's root, with slashes between its parts.
    ///
    /// # Errors
    /// [`SiteError`].
    pub fn add(
        &mut self,
        name: &str,
        content: &'static [u8],
        modified: Option<UnixSeconds>,
    ) -> Result<(), SiteError> {
        let bad = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
        if name.split('/').any(bad) {
            return Err(SiteError::Name(name.to_string()));
        }
        let number = self.site.files.len();
        let path = format!("/{name}");
        if self.site.paths.contains_key(path.as_bytes()) {
            return Err(SiteError::Twice(name.to_string()));
        }
        if path.as_bytes() == NOT_FOUND {
            self.site.not_found = Some(number);
        }
        if let Some(directory) = path.strip_suffix(INDEX).filter(|directory| directory.ends_with('/')) {
            self.site.paths.insert(directory.as_bytes().into(), Target::File(number));
            // A file of the same name takes precedence over the directory.
            let bare = directory.trim_end_matches('/').as_bytes();
            if !bare.is_empty() && !self.site.paths.contains_key(bare) {
                self.site.paths.insert(bare.into(), Target::Directory);
            }
        }
        self.site.paths.insert(path.as_bytes().into(), Target::File(number));
        self.site.files.push(File::new(number, &path, content, modified));
        self.site.bytes += content.len();
        Ok(())
    }

    /// Returns the site.
    pub fn build(self) -> Site {
        self.site
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    fn site(names: &[&str]) -> Result<Site, SiteError> {
        let mut builder = SiteBuilder::new(1);
        names.iter().try_for_each(|name| builder.add(name, b"content", None))?;
        Ok(builder.build())
    }

    fn is_file(site: &Site, path: &str) -> bool {
        matches!(site.find(path.as_bytes()), Some(SiteEntry::File(_)))
    }

    #[test]
    fn a_file_is_found_by_its_path_and_an_index_also_by_its_directory() {
        let site = site(&["index.html", "a/index.html", "a/b", "404.html"]).unwrap();
        for path in ["/", "/index.html", "/a/", "/a/index.html", "/a/b"] {
            assert!(is_file(&site, path), "{path}");
        }
        assert!(matches!(site.find(b"/a"), Some(SiteEntry::Directory)));
        for path in ["", "a/b", "/a/b/", "/b", "//", "/A/b", "/a//b", "/a/../a/b", "/./a/b"] {
            assert!(site.find(path.as_bytes()).is_none(), "{path}");
        }
        assert_eq!((site.file_count(), site.len_bytes()), (4, 28));
        assert!(site.not_found().is_some());
    }

    #[test]
    fn names_that_no_request_can_match_are_rejected() {
        for name in ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "./a", "a\0b"] {
            assert_eq!(site(&[name]).unwrap_err(), SiteError::Name(name.into()));
        }
        assert_eq!(site(&["a", "a"]).unwrap_err(), SiteError::Twice("a".into()));
    }

    #[test]
    fn short_content_follows_its_fields_in_memory() {
        for len in [0, 1, TOGETHER, TOGETHER + 1] {
            let content: &'static [u8] = Vec::leak(alloc::vec![7; len]);
            let file = File::new(0, "/a.txt", content, Some(UnixSeconds(0)));
            let mut all = Chain::new();
            file.append_to(&mut all);
            let views = if len <= TOGETHER { 1 } else { 2 };
            assert_eq!(all.parts().len(), views);
            let whole = file.whole().filter(|_| len <= TOGETHER);
            assert!(whole.is_none_or(|whole| all.to_vec() == whole[..]));
            assert_eq!(file.whole().is_some(), len <= TOGETHER);
            let mut apart = Chain::from(file.fields());
            apart.push_back(file.content().clone());
            assert_eq!(all, apart);
            assert_eq!(file.content()[..], *content);
            assert!(file.fields().ends_with(b"\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"));
        }
    }

    #[proves("RFC 9110 8.8.3", "different content has a different tag.")]
    #[test]
    fn tags_follow_the_content() {
        let tag = |content: &'static [u8]| File::new(0, "/a", content, None).tag;
        assert_eq!(tag(b"one"), tag(b"one"));
        assert_ne!(tag(b"one"), tag(b"two"));
        assert_ne!(tag(b""), tag(b"\0"));
    }
}
