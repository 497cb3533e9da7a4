//! The JSON documents of the OCI image specification, as far as they matter here.

use crate::config::ProgramConfig;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// A reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    pub platform: Option<Platform>,
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
}

/// The platform of an image.
#[derive(Clone, Debug, Deserialize)]
pub struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

/// An index: the images of a layout, or of several platforms.
#[derive(Clone, Debug, Deserialize)]
pub struct Index {
    #[serde(default, deserialize_with = "or_default")]
    pub manifests: Vec<Descriptor>,
}

/// The manifest of an image.
#[derive(Clone, Debug, Deserialize)]
pub struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// The configuration of an image.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    platform: Option<Platform>,
    #[serde(default, deserialize_with = "or_default")]
    config: Program,
    rootfs: RootFs,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Program {
    #[serde(deserialize_with = "or_default")]
    entrypoint: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    cmd: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    env: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    working_dir: String,
    #[serde(deserialize_with = "or_default")]
    user: String,
}

#[derive(Clone, Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// Reads `null` as the default.
fn or_default<'a, D: serde::Deserializer<'a>, T: Default + Deserialize<'a>>(
    source: D,
) -> Result<T, D::Error> {
    Option::deserialize(source).map(Option::unwrap_or_default)
}

impl Descriptor {
    pub fn is_manifest(&self) -> bool {
        matches!(
            self.media_type.as_str(),
            "application/vnd.oci.image.manifest.v1+json"
                | "application/vnd.docker.distribution.manifest.v2+json"
        )
    }

    pub fn is_index(&self) -> bool {
        matches!(
            self.media_type.as_str(),
            "application/vnd.oci.image.index.v1+json"
                | "application/vnd.docker.distribution.manifest.list.v2+json"
        )
    }

    /// Returns whether it is a layer. Its first bytes say how it is compressed.
    pub fn is_layer(&self) -> bool {
        let of_oci = self.media_type.strip_prefix("application/vnd.oci.image.layer.v1.tar");
        of_oci.is_some_and(|rest| matches!(rest, "" | "+gzip" | "+zstd"))
            || matches!(
                self.media_type.as_str(),
                "application/vnd.docker.image.rootfs.diff.tar"
                    | "application/vnd.docker.image.rootfs.diff.tar.gzip"
                    | "application/vnd.docker.image.rootfs.diff.tar.zstd"
            )
    }
}

impl Platform {
    pub fn is_ours(&self) -> bool {
        self.os == "linux" && self.architecture == "amd64"
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

impl Config {
    /// Returns the platform, if the configuration names one.
    pub fn platform(&self) -> Option<&Platform> {
        self.platform.as_ref().filter(|platform| !platform.os.is_empty() && !platform.architecture.is_empty())
    }

    /// Returns the digests of the layers' archives.
    pub fn layer_digests(&self) -> &[String] {
        &self.rootfs.diff_ids
    }

    pub fn program(&self) -> ProgramConfig {
        let Program { entrypoint, cmd, env, working_dir, user } = self.config.clone();
        ProgramConfig { entrypoint, command: cmd, environment: env, directory: working_dir, user }
    }
}
