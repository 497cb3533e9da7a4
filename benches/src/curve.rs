//! Curves over the size of a message: a table of some of their points, and a picture.

use crate::record::{Record, Series};
use crate::statistics::median;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// The result of drawing. Drawing into a string fails only if a chart has no room.
pub type DrawingResult = Result<(), DrawingAreaErrorKind<io::Error>>;

/// Name of the curve of one-way times, in us.
pub const ONE_WAY_US: &str = "one-way-us";

/// Name of the curve of guest instructions for a round trip.
pub const INSTRUCTIONS: &str = "instructions";

/// The points of a curve, by the size of a message in bytes.
pub type Curve = BTreeMap<u64, Series>;

/// Width and height of the picture, in pixels.
const PICTURE: (u32, u32) = (720, 400);

/// A system's line in the picture.
struct Line {
    name: &'static str,
    colour: RGBColor,
    /// Size of a message in bytes, and throughput of one direction in MB/s.
    points: Vec<(f64, f64)>,
}

impl Line {
    fn new(curve: &Curve, name: &'static str, colour: RGBColor, of: fn(&Series) -> &[f64]) -> Self {
        let measured = curve.iter().filter(|(_, series)| !of(series).is_empty());
        // A byte a microsecond is a megabyte a second.
        let points = measured.map(|(&size, series)| (size as f64, size as f64 / median(of(series))));
        Self { name, colour, points: points.collect() }
    }
}

/// Returns an SVG picture of both systems' throughput by the size of a message, on logarithmic scales; `None` if the
/// record has no such curve.
pub fn picture(record: &Record) -> Option<String> {
    let curve = record.curves.get(ONE_WAY_US)?;
    let lines = [
        Line::new(curve, "Isola", RGBColor(0xc0, 0x39, 0x2b), |series| &series.isola),
        Line::new(curve, "Linux", RGBColor(0x2c, 0x5f, 0x8a), |series| &series.peer),
    ];
    let mut svg = String::new();
    draw(&mut svg, &lines).ok()?;
    Some(svg)
}

fn draw(svg: &mut String, lines: &[Line]) -> DrawingResult {
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let most_size = all().map(|point| point.0).fold(2.0, f64::max);
    let least = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let most = all().map(|point| point.1).fold(0.0, f64::max);
    let decades = 10_f64.powf(least.log10().floor())..10_f64.powf(most.log10().ceil());
    let root = SVGBackend::with_string(svg, PICTURE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((1.0..most_size).log_scale().base(2.0), decades.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(12)
        .x_desc("size of a message, bytes")
        .y_desc("one way, MB/s")
        .x_label_formatter(&|size| bytes(*size as u64))
        .draw()?;
    for Line { name, colour, points } in lines {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .draw()?;
    root.present()
}

/// Returns a table of every fourth power of two of a record's curves; `None` if it has none.
pub fn table(record: &Record) -> Option<String> {
    let times = record.curves.get(ONE_WAY_US)?;
    let instructions = record.curves.get(INSTRUCTIONS);
    let mut text = "\n| bytes | Isola, us one way | Linux | ratio | Isola, instructions there and back | Linux | ratio |\n\
        |---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let sizes = times.keys().filter(|size| size.is_power_of_two() && size.ilog2() % 2 == 0);
    for size in sizes {
        let of = |curve: Option<&Curve>| match curve.and_then(|curve| curve.get(size)) {
            Some(series) if !series.isola.is_empty() && !series.peer.is_empty() => {
                let (isola, linux) = (median(&series.isola), median(&series.peer));
                format!("{isola:.0} | {linux:.0} | {:.3}", isola / linux)
            }
            _ => " | | ".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {} | {} |", bytes(*size), of(Some(times)), of(instructions));
    }
    Some(text)
}

/// Returns a power of two with a binary prefix, as in `64K`.
fn bytes(size: u64) -> String {
    match size {
        0..0x400 => size.to_string(),
        0x400..0x10_0000 => format!("{}K", size >> 10),
        _ => format!("{}M", size >> 20),
    }
}

/// Returns the lines of a picture that consist of `points` points, in pixels.
#[cfg(test)]
pub(crate) fn lines_of(svg: &str, points: usize) -> Vec<Vec<(u32, u32)>> {
    let lines = svg.split("<polyline").skip(1).map(|line| line.split("points=\"").nth(1).unwrap());
    let lines = lines.map(|line| line.split('"').next().unwrap().split_whitespace());
    let lines = lines.map(|line| line.map(|point| point.split_once(',').unwrap()));
    let lines = lines.map(|line| line.map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap())).collect());
    lines.filter(|line: &Vec<(u32, u32)>| line.len() == points).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    fn with_curves() -> Record {
        let mut record = record("netpipe-1-time", &[1.0], &[2.0]);
        for curve in [ONE_WAY_US, INSTRUCTIONS] {
            for (size, isola) in [(1, 10.0), (4, 10.0), (1 << 20, 2_000.0)] {
                let series = record.point(curve, size);
                series.isola.extend([isola, 2.0 * isola, 3.0 * isola]);
                series.peer.push(4.0 * isola);
            }
        }
        record
    }

    #[test]
    fn a_table_has_the_medians_of_both_systems() {
        let text = table(&with_curves()).unwrap();
        assert!(text.contains("\n| 1 | 20 | 40 | 0.500 | 20 | 40 | 0.500 |\n"), "{text}");
        assert!(text.contains("\n| 1M | 4000 | 8000 | 0.500 |"), "{text}");
        assert_eq!(table(&record("kv-p99", &[1.0], &[2.0])), None);
    }

    #[test]
    fn a_picture_has_a_line_for_each_system_within_its_frame() {
        let svg = picture(&with_curves()).unwrap();
        let lines = lines_of(&svg, 3);
        assert_eq!(lines.len(), 2);
        for points in lines {
            assert!(points.is_sorted_by(|one, next| one.0 < next.0 && one.1 > next.1), "{points:?}");
            assert!(points.iter().all(|point| point.0 < PICTURE.0 && point.1 < PICTURE.1), "{points:?}");
        }
        for words in ["Isola", "Linux", "1M", "size of a message, bytes"] {
            assert!(svg.contains(words), "{words}");
        }
        assert_eq!(picture(&record("kv-p99", &[1.0], &[2.0])), None);
    }
}
