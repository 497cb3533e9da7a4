//! Curves over the size of a message: a table of some of their points, and a picture.

use crate::record::{Record, Series};
use crate::statistics::median;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The curve of times, one way, in us.
pub const ONE_WAY_US: &str = "one-way-us";

/// The curve of guest instructions, there and back.
pub const INSTRUCTIONS: &str = "instructions";

/// A curve's points, by the size of a message in bytes.
pub type Curve = BTreeMap<u64, Series>;

/// Width and height of the picture.
const PICTURE: (f64, f64) = (720.0, 400.0);

/// The room beside the plot: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 16.0, 16.0, 44.0);

/// A line in the picture.
struct Line {
    name: &'static str,
    colour: &'static str,
    /// Size, and what one way carries, in MB/s.
    points: Vec<(f64, f64)>,
}

/// The picture of what one way carries by the size of a message, both systems, on logarithmic scales; `None` where a record
/// has no such curve.
pub fn picture(record: &Record) -> Option<String> {
    let curve = record.curves.get(ONE_WAY_US)?;
    let line = |name, colour, of: fn(&Series) -> &[f64]| {
        let measured = curve.iter().filter(|(_, series)| !of(series).is_empty());
        // Bytes a us are MB a s.
        let points =
            measured.map(|(&size, series)| (size as f64, size as f64 / median(of(series)))).collect();
        Line { name, colour, points }
    };
    let lines =
        [line("Isola", "#c0392b", |series| &series.isola), line("Linux", "#2c5f8a", |series| &series.peer)];
    let all = || lines.iter().flat_map(|line| &line.points);
    let most_size = all().map(|point| point.0).reduce(f64::max)?;
    let (least, most) =
        (all().map(|point| point.1).reduce(f64::min)?, all().map(|point| point.1).reduce(f64::max)?);
    let (decades, top) = (least.log10().floor(), most.log10().ceil());
    let (left, above, right, below) = MARGIN;
    let x = |size: f64| left + (PICTURE.0 - left - right) * size.log2() / most_size.log2().max(1.0);
    let y = |rate: f64| {
        let part = (rate.log10() - decades) / (top - decades).max(1.0);
        PICTURE.1 - below - (PICTURE.1 - above - below) * part
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        PICTURE.0, PICTURE.1
    );
    let mut put = |text: String| {
        svg.push_str(&text);
        svg.push('\n');
    };
    let (bottom, end) = (PICTURE.1 - below, PICTURE.0 - right);
    let grid = |x1: f64, y1: f64, x2: f64, y2: f64| {
        format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>")
    };
    for power in (0..=most_size.log2() as u32).step_by(2) {
        let (size, at) = (1_u64 << power, x(f64::from(power).exp2()));
        put(grid(at, above, at, bottom));
        put(format!(
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            bytes(size)
        ));
    }
    for power in decades as i32..=top as i32 {
        let rate = 10_f64.powi(power);
        put(grid(left, y(rate), end, y(rate)));
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate}</text>",
            left - 6.0,
            y(rate) + 4.0
        ));
    }
    for (index, line) in lines.iter().enumerate() {
        let points: Vec<String> =
            line.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
        let (colour, at) = (line.colour, above + 20.0 + 18.0 * index as f64);
        let points = points.join(" ");
        put(format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"));
        put(format!("<text x=\"{:.1}\" y=\"{at:.1}\" fill=\"{colour}\">{}</text>", left + 12.0, line.name));
    }
    let middle = f64::midpoint(left, end);
    put(format!(
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">size of a message, bytes</text>",
        bottom + 36.0
    ));
    let middle = f64::midpoint(above, bottom);
    put(format!(
        "<text transform=\"translate(14 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">one way, MB/s</text>"
    ));
    put("</svg>".to_owned());
    Some(svg)
}

/// A table of every fourth power of two of a record's curves; `None` where there are none.
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

/// A power of two, shortly.
fn bytes(size: u64) -> String {
    match size {
        0..0x400 => size.to_string(),
        0x400..0x10_0000 => format!("{}K", size >> 10),
        _ => format!("{}M", size >> 20),
    }
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
        let lines: Vec<&str> = svg.lines().filter(|line| line.starts_with("<polyline")).collect();
        assert_eq!(lines.len(), 2);
        for line in lines {
            let points = line.split('"').nth(1).unwrap().split(' ');
            let points: Vec<(f64, f64)> = points
                .map(|point| point.split_once(',').unwrap())
                .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
                .collect();
            assert_eq!(points.len(), 3);
            assert!(points.is_sorted_by(|one, next| one.0 < next.0 && one.1 > next.1), "{points:?}");
            assert!(
                points.iter().all(|&(x, y)| (0.0..PICTURE.0).contains(&x) && (0.0..PICTURE.1).contains(&y))
            );
        }
        assert!(svg.ends_with("</svg>\n"));
    }
}
