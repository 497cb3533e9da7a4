//! Tests of the module.

use super::*;
use ed25519_compact::{KeyPair, Seed};
use isola_abi::integrity;
use proptest::prelude::*;

const IMAGE: ImageDigest = ImageDigest([5; 32]);

fn signed(seed: u8, image: &ImageDigest) -> Requirement {
    let keys = KeyPair::from_seed(Seed::new([seed; 32]));
    Requirement {
        sha256: None,
        signed_by: Some(integrity::PublicKey(*keys.pk)),
        signature: Some(integrity::Signature(*keys.sk.sign(image.signed_text(), None))),
    }
}

#[test]
fn an_image_must_have_the_required_digest() {
    assert_eq!(check(&Requirement::default(), &IMAGE), Ok(()));
    let same = Requirement { sha256: Some(IMAGE), ..Requirement::default() };
    assert_eq!(check(&same, &IMAGE), Ok(()));
    let other = ImageDigest([6; 32]);
    assert_eq!(check(&same, &other), Err(UnmetRequirement::Digest { required: IMAGE, measured: other }));
    // A valid signature does not make up for a wrong digest.
    let both = Requirement { sha256: Some(IMAGE), ..signed(1, &other) };
    assert!(matches!(check(&both, &other), Err(UnmetRequirement::Digest { .. })));
}

#[test]
fn an_image_must_have_a_signature_by_the_required_key() {
    let right = signed(1, &IMAGE);
    let key = right.signed_by.unwrap();
    assert_eq!(check(&right, &IMAGE), Ok(()));
    assert_eq!(check(&right, &ImageDigest([6; 32])), Err(UnmetRequirement::Signature(key)));
    let by_another = Requirement { signature: signed(2, &IMAGE).signature, ..right };
    assert_eq!(check(&by_another, &IMAGE), Err(UnmetRequirement::Signature(key)));
    assert_eq!(check(&Requirement { signature: None, ..right }, &IMAGE), Err(UnmetRequirement::Unsigned));
    // A signature without a required key is ignored.
    assert_eq!(check(&Requirement { signed_by: None, ..by_another }, &IMAGE), Ok(()));
}

/// RFC 8032 7.1: the third test vector is accepted, by the code that checks images.
#[test]
fn the_test_vector_of_the_standard_is_accepted() {
    let hex = |text: &str| text.parse::<integrity::PublicKey>().unwrap().0;
    let key = hex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025");
    let signature = "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
                     18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a";
    let signature: integrity::Signature = signature.parse().unwrap();
    assert!(PublicKey::new(key).verify([0xaf, 0x82], &Signature::new(signature.0)).is_ok());
    assert!(PublicKey::new(key).verify([0xaf, 0x83], &Signature::new(signature.0)).is_err());
}

proptest! {
    /// Every changed bit of key or signature is detected, and arbitrary bytes as key or signature do not panic.
    #[test]
    fn changed_keys_and_signatures_are_rejected(bit in 0usize..768, noise in any::<[u8; 32]>()) {
        let mut changed = signed(1, &IMAGE);
        match bit.checked_sub(256) {
            None => changed.signed_by.as_mut().unwrap().0[bit / 8] ^= 1 << (bit % 8),
            Some(bit) => changed.signature.as_mut().unwrap().0[bit / 8] ^= 1 << (bit % 8),
        }
        prop_assert!(check(&changed, &IMAGE).is_err());
        changed.signed_by = Some(integrity::PublicKey(noise));
        prop_assert!(check(&changed, &IMAGE).is_err());
        changed.signature.as_mut().unwrap().0[..32].copy_from_slice(&noise);
        changed.signature.as_mut().unwrap().0[32..].copy_from_slice(&noise);
        prop_assert!(check(&changed, &IMAGE).is_err());
    }
}
