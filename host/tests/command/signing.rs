//! Digests and signatures of images, from the key to the demands of a cell.

use crate::sandbox::Sandbox;
use std::fs;

#[test]
fn a_cell_can_demand_a_digest_and_a_signature() {
    let sandbox = Sandbox::up();
    let digest = sandbox.isola(&["image", "digest", "kv"]).ok();
    let (digest, name) = digest.trim().split_once("  ").unwrap();
    assert_eq!((digest.len(), name), (64, "kv"));
    let key = sandbox.isola(&["image", "keygen", "release.key"]).ok();
    sandbox.isola(&["image", "keygen", "release.key"]).failed(1, "is there already");
    let signed = ["run", "-d", "--name", "kv", "--sha256", digest, "--signed-by", "./release.key.pub", "kv"];
    sandbox.isola(&signed).failed(126, "isola image sign");
    sandbox.isola(&["image", "sign", "--key", "release.key", "kv"]).ok();
    sandbox.isola(&["image", "verify", "--key", key.trim(), "kv"]).ok();
    sandbox.isola(&signed).ok();
    let cell = sandbox.json(&["inspect", "kv"]);
    assert_eq!((&cell["image_sha256"], &cell["image_is_pinned"]), (&digest.into(), &true.into()));
    assert_eq!(cell["image_signed_by"], key.trim());
    let shown = sandbox.isola(&["inspect", "kv"]).ok();
    assert!(shown.contains(&format!("{digest}, as demanded")) && shown.contains(key.trim()), "{shown}");
    let kept = sandbox.json(&["image", "ls"]);
    assert_eq!(kept[0]["sha256"], digest);
    // A rebuilt image is another image.
    let path = sandbox.images().join("kv");
    let mut other = fs::read(&path).unwrap();
    other[299] ^= 1;
    fs::write(&path, other).unwrap();
    sandbox.isola(&["image", "verify", "--key", "release.key.pub", "kv"]).failed(1, "no valid signature");
    sandbox.isola(&["run", "-d", "--sha256", digest, "kv"]).failed(126, "must be");
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "kv\n");
}

#[test]
fn demands_without_a_supervisor_are_rejected() {
    let sandbox = Sandbox::new();
    let digest = "0".repeat(64);
    for option in ["--standalone", "--hosted"] {
        sandbox.isola(&["run", option, "--sha256", &digest, "kv"]).failed(2, "sha256");
    }
    fs::write(sandbox.path("isola.toml"), "image = \"kv\"\nsigned_by = \"release.key.pub\"\n").unwrap();
    sandbox.isola(&["run", "-f", "isola.toml", "--standalone"]).failed(2, "signed_by");
}
