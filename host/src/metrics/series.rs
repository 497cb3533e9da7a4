//! Values by family and labels, and their text and JSON forms.
//!
//! Two values with the same labels are added: a cell can have several activities of one name, and duplicate series make
//! a text invalid. Labels are cut to [`MAX_LABEL_CHARS`], and the text formats escape them.

use super::catalogue::{BaseUnit, Family, Kind};
use super::histogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;

/// The maximum length of a label's value, in characters.
pub const MAX_LABEL_CHARS: usize = 64;

/// A text format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TextFormat {
    /// OpenMetrics 1.0
    #[default]
    Openmetrics,
    /// Prometheus text format 0.0.4, which promtool and the textfile collector of node_exporter read
    Prometheus,
}

impl TextFormat {
    /// Returns the format's media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Openmetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number, of a counter.
    Count(u64),
    /// A real number, of a counter or gauge.
    Number(f64),
    /// A histogram.
    Histogram(Histogram),
    /// The value of an info, which has labels only.
    Info,
}

/// The values of a reading.
#[derive(Debug, Default)]
pub struct Metrics {
    families: BTreeMap<&'static str, Series>,
}

/// The series of a family, by the values of its labels.
#[derive(Debug)]
struct Series {
    family: &'static Family,
    values: BTreeMap<Vec<String>, Value>,
}

impl Value {
    /// Adds another value of the same series.
    fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Count(sum), Self::Count(more)) => *sum = sum.saturating_add(more),
            (Self::Number(sum), Self::Number(more)) => *sum += more,
            (Self::Histogram(sum), Self::Histogram(more)) => sum.add(&more),
            _ => {}
        }
    }
}

impl Metrics {
    /// Adds the value of a series, with the values of the family's labels in their order.
    pub fn add(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        debug_assert_eq!(family.labels.len(), labels.len(), "{}", family.name);
        let series =
            self.families.entry(family.name).or_insert_with(|| Series { family, values: BTreeMap::new() });
        let labels = labels.iter().map(|label| label.chars().take(MAX_LABEL_CHARS).collect()).collect();
        match series.values.entry(labels) {
            Entry::Vacant(entry) => {
                entry.insert(value);
            }
            Entry::Occupied(mut entry) => entry.get_mut().add(value),
        }
    }

    /// Adds a number: a gauge's, or a counter's that is no whole number.
    pub fn number(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        self.add(family, labels, Value::Number(value));
    }

    /// Adds a counter's whole number.
    pub fn count(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        self.add(family, labels, Value::Count(value));
    }

    /// Returns the text form.
    ///
    /// # Errors
    /// None in practice: a `String` accepts all text.
    pub fn text(self: &Arc<Self>, format: TextFormat) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(self)));
        let mut text = String::new();
        match format {
            TextFormat::Openmetrics => text::encode(&mut text, &registry)?,
            TextFormat::Prometheus => prometheus_text::encode(&mut text, &registry)?,
        }
        Ok(text)
    }

    /// Returns the JSON form: an array of families.
    pub fn json(&self) -> Json {
        self.families.values().map(Series::json).collect()
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.families.values().try_for_each(|series| series.encode(&mut encoder))
    }
}

impl Series {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Family { name, unit, kind, labels, help } = *self.family;
        let kind = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        // The encoder appends the unit to the name.
        let bare = unit.and_then(|unit| name.strip_suffix(unit.name())?.strip_suffix('_')).unwrap_or(name);
        let unit = unit.map(|unit| match unit {
            BaseUnit::Seconds => Unit::Seconds,
            BaseUnit::Bytes => Unit::Bytes,
            BaseUnit::Cycles | BaseUnit::Hertz => Unit::Other(unit.name().to_owned()),
        });
        let mut metric = encoder.encode_descriptor(bare, help, unit.as_ref(), kind)?;
        for (values, value) in &self.values {
            let labels: Vec<(&str, &str)> =
                labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            match value {
                Value::Info => metric.encode_info(&labels)?,
                value => encode_value(&mut metric.encode_family(&labels)?, kind, value)?,
            }
        }
        Ok(())
    }

    fn json(&self) -> Json {
        let Family { name, unit, kind, labels, help } = *self.family;
        let samples = self.values.iter().map(|(values, value)| {
            let values = values.iter().map(|value| Json::from(value.as_str()));
            let labels: Map<String, Json> =
                labels.iter().map(|label| (*label).to_owned()).zip(values).collect();
            match value {
                Value::Count(count) => json!({ "labels": labels, "value": count }),
                Value::Number(number) => json!({ "labels": labels, "value": number }),
                Value::Info => json!({ "labels": labels, "value": 1 }),
                Value::Histogram(histogram) => {
                    // JSON has no infinity: the count is that of the last bucket.
                    let finite = histogram.buckets.iter().filter(|(bound, _)| bound.is_finite());
                    let buckets: Vec<Json> =
                        finite.map(|(bound, count)| json!({ "to_seconds": bound, "count": count })).collect();
                    let (count, sum) = (histogram.count(), histogram.sum);
                    json!({ "labels": labels, "count": count, "sum": sum, "buckets": buckets })
                }
            }
        });
        let samples: Vec<Json> = samples.collect();
        let unit = unit.map(BaseUnit::name);
        json!({ "name": name, "type": kind.name(), "unit": unit, "help": help, "samples": samples })
    }
}

fn encode_value(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: &Value) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Count(count)) => {
            encoder.encode_counter::<NoLabelSet, u64, f64>(count, None)
        }
        (MetricType::Counter, Value::Number(number)) => {
            encoder.encode_counter::<NoLabelSet, f64, f64>(number, None)
        }
        (_, Value::Count(count)) => encoder.encode_gauge(&(*count as f64)),
        (_, Value::Number(number)) => encoder.encode_gauge(number),
        (_, Value::Histogram(histogram)) => {
            encoder.encode_histogram::<NoLabelSet>(histogram.sum, histogram.count(), &histogram.buckets, None)
        }
        (_, Value::Info) => Ok(()),
    }
}

/// Converts ns to seconds.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Converts cycles to seconds, if the number of cycles per second is known.
pub(super) fn cycle_seconds(cycles: u64, hz: u64) -> Option<f64> {
    (hz > 0).then(|| cycles as f64 / hz as f64)
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::{
        ACTIVITY_EVENTS, ACTIVITY_MEMORY, CELL, CELL_REQUEST_DURATION, CORE_TIME, MACHINE_MEMORY,
    };
    use super::*;
    use proptest::prelude::*;

    fn lines(metrics: Metrics, format: TextFormat) -> Vec<String> {
        Arc::new(metrics).text(format).unwrap().lines().map(str::to_owned).collect()
    }

    fn metrics() -> Metrics {
        let mut metrics = Metrics::default();
        metrics.number(&MACHINE_MEMORY, &[], 1024.0);
        metrics.number(&CORE_TIME, &["kv", "1", "idle"], 1.5);
        metrics.add(&CELL, &["kv", "3", "kv"], Value::Info);
        let buckets = vec![(0.001, 2), (0.01, 3), (f64::INFINITY, 1)];
        metrics.add(&CELL_REQUEST_DURATION, &["kv"], Value::Histogram(Histogram { buckets, sum: 20.5 }));
        metrics
    }

    #[test]
    fn openmetrics_have_units_types_and_an_end() {
        let lines = lines(metrics(), TextFormat::Openmetrics);
        for expected in [
            "# TYPE isola_core_time_seconds counter",
            "# UNIT isola_core_time_seconds seconds",
            "isola_core_time_seconds_total{cell=\"kv\",core=\"1\",account=\"idle\"} 1.5",
            "# TYPE isola_machine_memory_bytes gauge",
            "isola_machine_memory_bytes 1024.0",
            "# TYPE isola_cell info",
            "isola_cell_info{cell=\"kv\",id=\"3\",image=\"kv\"} 1",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:#?}");
        }
        assert_eq!(lines.last().unwrap(), "# EOF");
    }

    #[test]
    fn the_prometheus_format_names_counters_with_their_suffix() {
        let lines = lines(metrics(), TextFormat::Prometheus);
        for expected in ["# TYPE isola_core_time_seconds_total counter", "# TYPE isola_cell_info gauge"] {
            assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:#?}");
        }
        assert!(!lines.iter().any(|line| line.starts_with("# UNIT") || line == "# EOF"), "{lines:#?}");
    }

    #[test]
    fn histograms_have_cumulative_buckets_up_to_infinity() {
        for format in [TextFormat::Openmetrics, TextFormat::Prometheus] {
            let lines = lines(metrics(), format);
            let samples =
                lines.iter().filter_map(|line| line.strip_prefix("isola_cell_request_duration_seconds_"));
            // The formats have different orders of labels.
            let samples = samples.map(|sample| sample.replace("cell=\"kv\"", "").replace(',', ""));
            let mut samples: Vec<String> = samples.collect();
            samples.sort_unstable();
            let expected = [
                "bucket{le=\"+Inf\"} 6",
                "bucket{le=\"0.001\"} 2",
                "bucket{le=\"0.01\"} 5",
                "count{} 6",
                "sum{} 20.5",
            ];
            assert_eq!(samples, expected);
        }
    }

    #[test]
    fn hostile_label_values_are_escaped() {
        let mut metrics = Metrics::default();
        metrics.count(&ACTIVITY_EVENTS, &["kv", "a\"} 1\nisola_fake 2\n\\"], 7);
        for format in [TextFormat::Openmetrics, TextFormat::Prometheus] {
            let mut again = Metrics::default();
            std::mem::swap(&mut again, &mut metrics);
            let again = Arc::new(again);
            let text = again.text(format).unwrap();
            let line = r#"isola_activity_events_total{cell="kv",activity="a\"} 1\nisola_fake 2\n\\"} 7"#;
            assert!(text.lines().any(|found| found == line), "{text}");
            assert!(!text.lines().any(|line| line.starts_with("isola_fake")), "{text}");
            metrics = Arc::into_inner(again).unwrap();
        }
    }

    #[test]
    fn values_with_the_same_labels_are_one_series() {
        let mut metrics = Metrics::default();
        metrics.count(&ACTIVITY_EVENTS, &["kv", "tenant"], 7);
        metrics.count(&ACTIVITY_EVENTS, &["kv", "tenant"], u64::MAX);
        metrics.number(&ACTIVITY_MEMORY, &["kv", "tenant"], 7.0);
        metrics.number(&ACTIVITY_MEMORY, &["kv", "tenant"], -9.0);
        let long = "x".repeat(1000);
        metrics.count(&ACTIVITY_EVENTS, &["kv", &long], 1);
        metrics.count(&ACTIVITY_EVENTS, &["kv", &format!("{long}y")], 1);
        let samples: Vec<String> = lines(metrics, TextFormat::Openmetrics)
            .into_iter()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let cut = "x".repeat(MAX_LABEL_CHARS);
        let expected = [
            format!("isola_activity_events_total{{cell=\"kv\",activity=\"tenant\"}} {}", u64::MAX),
            format!("isola_activity_events_total{{cell=\"kv\",activity=\"{cut}\"}} 2"),
            "isola_activity_memory_bytes{cell=\"kv\",activity=\"tenant\"} -2.0".to_owned(),
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn json_has_labels_and_values() {
        let json = metrics().json();
        let family = |name: &str| {
            json.as_array().unwrap().iter().find(|family| family["name"] == name).unwrap().clone()
        };
        let time = family("isola_core_time_seconds");
        assert_eq!((&time["type"], &time["unit"]), (&"counter".into(), &"seconds".into()));
        assert_eq!(time["samples"][0]["labels"]["account"], "idle");
        let latency = &family("isola_cell_request_duration_seconds")["samples"][0];
        assert_eq!((&latency["count"], latency["buckets"].as_array().unwrap().len()), (&6.into(), 2));
    }

    proptest! {
        #[test]
        fn a_label_never_ends_its_line(name in "\\PC*|[\"\\\\\n{}, ]*") {
            let mut metrics = Metrics::default();
            metrics.count(&ACTIVITY_EVENTS, &["kv", &name], 7);
            let lines = lines(metrics, TextFormat::Openmetrics);
            prop_assert_eq!(lines.len(), 4);
            let prefix = "isola_activity_events_total{cell=\"kv\",activity=\"";
            let inside = lines[2].strip_prefix(prefix).unwrap().strip_suffix("\"} 7").unwrap();
            // An unescaped quotation mark would end the value.
            let rest = inside.replace("\\\\", "").replace("\\\"", "").replace("\\n", "");
            prop_assert!(!rest.contains(['"', '\\']), "{}", inside);
        }
    }
}
