//! Keys and signatures of images: ed25519 (RFC 8032), in file formats that other tools use as well.
//!
//! A private key is PKCS #8 in PEM, readable by its owner only; a public key is PEM, or 64 hexadecimal digits on a
//! command line. The signed message is the text of [`ImageDigest::signed_text`]. The signature is in a file beside the
//! image, as 128 hexadecimal digits: `kv.sig` belongs to `kv`.

use ed25519_compact as ed25519;
use isola_abi::integrity::{ImageDigest, PublicKey, Signature};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The mode of a file with a private key.
const PRIVATE: u32 = 0o600;

/// The reasons why a key or a signature cannot be read or used.
#[derive(Debug, Error)]
pub enum SigningError {
    /// The file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The file exists already.
    #[error("{0} is there already: keys are not overwritten; name another file, or remove it")]
    Exists(PathBuf),
    /// Other users may read the private key.
    #[error(
        "{0} holds a private key, and others than its owner may read it: chmod 600 it, or make a new key"
    )]
    Exposed(PathBuf),
    /// The file is not a private key.
    #[error("{0} holds no private key of ed25519 in PEM: make one with `isola image keygen`")]
    NoPrivateKey(PathBuf),
    /// The text is not a public key.
    #[error("{0} is no public key of ed25519: write 64 hexadecimal digits, or the path of a file in PEM")]
    NoPublicKey(String),
    /// The file is not a signature.
    #[error("{0} holds no signature: sign the image anew with `isola image sign`")]
    NoSignature(PathBuf),
}

/// Returns the path of the signature of the image at `path`.
pub fn signature_path(path: &Path) -> PathBuf {
    with_suffix(path, ".sig")
}

/// Returns the path of the public key that belongs to the private key at `path`.
pub fn public_path(path: &Path) -> PathBuf {
    with_suffix(path, ".pub")
}

/// Generates a key pair: the private key in a new file at `path`, the public key beside it.
///
/// # Errors
/// [`SigningError::Exists`] or [`SigningError::File`].
pub fn generate(path: &Path) -> Result<PublicKey, SigningError> {
    let public = public_path(path);
    if public.exists() {
        return Err(SigningError::Exists(public));
    }
    let keys = ed25519::KeyPair::generate();
    create(path, keys.to_pem().as_bytes(), PRIVATE)?;
    create(&public, keys.pk.to_pem().as_bytes(), 0o644)?;
    Ok(PublicKey(*keys.pk))
}

/// Signs an image with the private key at `path`. Returns the public key, too.
///
/// # Errors
/// [`SigningError`].
pub fn sign(path: &Path, digest: &ImageDigest) -> Result<(PublicKey, Signature), SigningError> {
    let file = |error| SigningError::File { path: path.to_owned(), error };
    let mode = fs::metadata(path).map_err(file)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(SigningError::Exposed(path.to_owned()));
    }
    let pem = fs::read_to_string(path).map_err(file)?;
    let keys = ed25519::KeyPair::from_pem(&pem).map_err(|_| SigningError::NoPrivateKey(path.to_owned()))?;
    Ok((PublicKey(*keys.pk), Signature(*keys.sk.sign(digest.signed_text(), None))))
}

/// Returns whether the holder of the key signed the image.
pub fn verify(key: &PublicKey, digest: &ImageDigest, signature: &Signature) -> bool {
    let signature = ed25519::Signature::new(signature.0);
    ed25519::PublicKey::new(key.0).verify(digest.signed_text(), &signature).is_ok()
}

/// Parses a public key: its digits, or the path of its file.
///
/// # Errors
/// [`SigningError::NoPublicKey`] or [`SigningError::File`].
pub fn public_key(text: &str) -> Result<PublicKey, SigningError> {
    if let Ok(key) = text.parse() {
        return Ok(key);
    }
    let wrong = || SigningError::NoPublicKey(text.to_owned());
    match fs::read_to_string(text) {
        Ok(pem) => ed25519::PublicKey::from_pem(&pem).map(|key| PublicKey(*key)).map_err(|_| wrong()),
        Err(error) if error.kind() == ErrorKind::NotFound && !text.contains(['/', '.']) => Err(wrong()),
        Err(error) => Err(SigningError::File { path: text.into(), error }),
    }
}

/// Writes the signature of the image at `path` beside it.
///
/// # Errors
/// [`SigningError::File`].
pub fn write_signature(path: &Path, signature: &Signature) -> Result<PathBuf, SigningError> {
    let path = signature_path(path);
    match fs::write(&path, format!("{signature}\n")) {
        Ok(()) => Ok(path),
        Err(error) => Err(SigningError::File { path, error }),
    }
}

/// Returns the signature beside the image at `path`, if there is one.
///
/// # Errors
/// [`SigningError::NoSignature`] or [`SigningError::File`].
pub fn read_signature(path: &Path) -> Result<Option<Signature>, SigningError> {
    let path = signature_path(path);
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| SigningError::NoSignature(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SigningError::File { path, error }),
    }
}

/// Creates a file that does not exist yet, with these access rights from the beginning.
fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SigningError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    match opened.and_then(|mut file| file.write_all(bytes)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(SigningError::Exists(path.to_owned())),
        written => written.map_err(|error| SigningError::File { path: path.to_owned(), error }),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: ImageDigest = ImageDigest([3; 32]);

    #[test]
    fn a_signature_verifies_with_the_public_key() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("release.key");
        let public = generate(&key).unwrap();
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let (by, signature) = sign(&key, &IMAGE).unwrap();
        assert_eq!(by, public);
        assert!(verify(&public, &IMAGE, &signature));
        assert!(!verify(&public, &ImageDigest([4; 32]), &signature));
        let path = public_path(&key);
        assert_eq!(public_key(path.to_str().unwrap()).unwrap(), public);
        assert_eq!(public_key(&public.to_string()).unwrap(), public);
        let image = dir.path().join("kv");
        assert_eq!(read_signature(&image).unwrap(), None);
        assert_eq!(write_signature(&image, &signature).unwrap(), dir.path().join("kv.sig"));
        assert_eq!(read_signature(&image).unwrap(), Some(signature));
    }

    #[test]
    fn keys_are_not_overwritten_and_not_used_if_others_may_read_them() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        generate(&key).unwrap();
        let before = fs::read(&key).unwrap();
        assert!(matches!(generate(&key), Err(SigningError::Exists(_))));
        assert_eq!(fs::read(&key).unwrap(), before);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(sign(&key, &IMAGE), Err(SigningError::Exposed(_))));
    }

    #[test]
    fn other_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        create(&file, b"no key at all\n", 0o600).unwrap();
        assert!(matches!(sign(&file, &IMAGE), Err(SigningError::NoPrivateKey(_))));
        assert!(matches!(public_key(file.to_str().unwrap()), Err(SigningError::NoPublicKey(_))));
        assert!(matches!(public_key("deadbeef"), Err(SigningError::NoPublicKey(_))));
        assert!(matches!(public_key("./absent.pub"), Err(SigningError::File { .. })));
        fs::write(dir.path().join("kv.sig"), "12ab").unwrap();
        assert!(matches!(read_signature(&dir.path().join("kv")), Err(SigningError::NoSignature(_))));
    }
}
