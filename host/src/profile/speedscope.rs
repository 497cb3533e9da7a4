//! Files for the viewer speedscope, in its own format (speedscope's wiki, "Importing from custom sources").

use super::folded::Grouping;
use super::named::NamedProfile;
use serde::Serialize;
use std::collections::BTreeMap;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: &'a str,
    exporter: &'static str,
    active_profile_index: usize,
    shared: Shared<'a>,
    profiles: Vec<SampledProfile<'a>>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SampledProfile<'a> {
    r#type: &'static str,
    name: &'a str,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<&'a [usize]>,
    weights: Vec<u64>,
}

/// Returns the file's text. With a grouping, each account is a profile of the file.
///
/// # Errors
/// Those of the encoder.
pub fn file(cell: &str, profile: &NamedProfile, grouping: Grouping) -> serde_json::Result<String> {
    let mut groups: BTreeMap<&str, (Vec<&[usize]>, Vec<u64>)> = BTreeMap::new();
    for ((account, stack), count) in &profile.stacks {
        let name = if grouping == Grouping::ByAccount { account.name() } else { cell };
        let (samples, weights) = groups.entry(name).or_default();
        samples.push(stack);
        weights.push(*count);
    }
    let profiles = groups.into_iter().map(|(name, (samples, weights))| SampledProfile {
        r#type: "sampled",
        name,
        unit: "none",
        start_value: 0,
        end_value: weights.iter().sum(),
        samples,
        weights,
    });
    let frames = profile
        .functions
        .iter()
        .map(|function| Frame { name: &function.name, file: function.file.as_deref() });
    serde_json::to_string(&File {
        schema: SCHEMA,
        name: cell,
        exporter: concat!("isola ", env!("CARGO_PKG_VERSION")),
        active_profile_index: 0,
        shared: Shared { frames: frames.collect() },
        profiles: profiles.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Account;
    use super::super::named::tests::{profile, web};
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_file_has_the_fields_of_the_format() {
        let profile = profile(&[(web(), &["main", "serve"], 3), (Account::Loop, &["main"], 4)]);
        let written: Value = serde_json::from_str(&file("kv", &profile, Grouping::None).unwrap()).unwrap();
        assert_eq!(written["$schema"], SCHEMA);
        assert_eq!(
            written["shared"]["frames"],
            json!([{"name": "main", "file": "src/main.rs"}, {"name": "serve", "file": "src/serve.rs"}])
        );
        assert_eq!(
            written["profiles"],
            json!([{
                "type": "sampled", "name": "kv", "unit": "none", "startValue": 0, "endValue": 7,
                "samples": [[0, 1], [0]], "weights": [3, 4],
            }])
        );
        let grouped: Value =
            serde_json::from_str(&file("kv", &profile, Grouping::ByAccount).unwrap()).unwrap();
        assert_eq!(
            (&grouped["profiles"][0]["name"], &grouped["profiles"][1]["endValue"]),
            (&json!("loop"), &json!(3))
        );
    }
}
