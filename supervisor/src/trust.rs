//! Checks an image's required digest and signature, by the digest that the supervisor computed, before the image is
//! parsed.

use ed25519_compact::{PublicKey, Signature};
use isola_abi::integrity::{ImageDigest, Requirement, UnmetRequirement};

/// Checks that the image with the digest `measured` satisfies `requirement`.
///
/// # Errors
/// Returns the violated part of the requirement.
pub fn check(requirement: &Requirement, measured: &ImageDigest) -> Result<(), UnmetRequirement> {
    if let Some(required) = requirement.sha256.filter(|required| required != measured) {
        return Err(UnmetRequirement::Digest { required, measured: *measured });
    }
    let Some(key) = requirement.signed_by else { return Ok(()) };
    let signature = requirement.signature.ok_or(UnmetRequirement::Unsigned)?;
    PublicKey::new(key.0)
        .verify(measured.signed_text(), &Signature::new(signature.0))
        .map_err(|_| UnmetRequirement::Signature(key))
}

#[cfg(test)]
mod tests;
