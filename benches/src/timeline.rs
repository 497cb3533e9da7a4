//! Curves over time: a picture of a load that rises and falls, the latencies of its requests, and the service's cores.

use crate::curve::{Curve, DrawingResult};
use crate::record::{Record, Series};
use crate::statistics::median;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Name of the curve of requests a second, by the start of a window in ms.
pub const REQUESTS: &str = "requests-per-s";

/// Name of the curve of 99th percentiles of a window, in ms.
pub const P99_MS: &str = "p99-ms";

/// Name of the curve of the service's cores in a window.
pub const CORES_OF_SERVICE: &str = "service-cores";

/// Prefix of the names of the same curves under a separate load for Isola.
pub const OWN_CURVES: &str = "own-";

/// Width and height of the picture, in pixels.
const PICTURE: (u32, u32) = (720, 640);

/// Height of the legend above the parts, in pixels.
const LEGEND_HEIGHT: u32 = 24;

/// The colours of the load, of latencies, and of cores.
const LOAD: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);
const LATENCY: RGBColor = RGBColor(0xc0, 0x39, 0x2b);
const CORES: RGBColor = RGBColor(0x2c, 0x5f, 0x8a);

/// One part of the picture.
struct Part {
    title: &'static str,
    /// Prefix of the names of its curves.
    prefix: &'static str,
    of: fn(&Series) -> &[f64],
}

/// The parts, from top to bottom.
const PARTS: [Part; 3] = [
    Part { title: "Linux: two cgroups, by weight", prefix: "", of: |series| &series.peer },
    Part { title: "Isola: two cells, the same load", prefix: "", of: |series| &series.isola },
    Part {
        title: "Isola: a load of its own, as near to saturation as that is for Linux",
        prefix: OWN_CURVES,
        of: |series| &series.isola,
    },
];

impl Part {
    /// Returns the medians of one of its curves: seconds, and values.
    fn points(&self, record: &Record, curve: &str) -> Vec<(f64, f64)> {
        let curve: Option<&Curve> = record.curves.get(&format!("{}{curve}", self.prefix));
        let windows = curve.into_iter().flatten().filter(|(_, series)| !(self.of)(series).is_empty());
        windows.map(|(&at_ms, series)| (at_ms as f64 / 1e3, median((self.of)(series)))).collect()
    }
}

/// The ranges of the axes, which all parts of a picture share.
struct Axes {
    most_s: f64,
    most_rate: f64,
    most_cores: f64,
    latencies_ms: Range<f64>,
}

impl Axes {
    /// Returns the axes that fit all of a record's points, `None` if it has none.
    fn of(record: &Record) -> Option<Self> {
        let all = |curve: &'static str| PARTS.iter().flat_map(move |part| part.points(record, curve));
        let latencies = || all(P99_MS).map(|point| point.1).filter(|p99| *p99 > 0.0);
        let decade = |power: f64| 10_f64.powf(power);
        Some(Self {
            most_s: all(REQUESTS).map(|point| point.0).reduce(f64::max)?.max(1.0),
            most_rate: all(REQUESTS).map(|point| point.1).reduce(f64::max)?.max(1.0),
            most_cores: all(CORES_OF_SERVICE).map(|point| point.1.ceil()).fold(1.0, f64::max),
            latencies_ms: decade(latencies().reduce(f64::min)?.log10().floor())
                ..decade(latencies().reduce(f64::max)?.log10().ceil()),
        })
    }
}

/// Returns an SVG picture of the record's curves; `None` if it has no such curves.
pub fn picture(record: &Record) -> Option<String> {
    let axes = Axes::of(record)?;
    let mut svg = String::new();
    draw(&mut svg, &axes, record).ok()?;
    Some(svg)
}

fn draw(svg: &mut String, axes: &Axes, record: &Record) -> DrawingResult {
    let root = SVGBackend::with_string(svg, PICTURE).into_drawing_area();
    root.fill(&WHITE)?;
    let (top, parts) = root.split_vertically(LEGEND_HEIGHT);
    draw_legend(&top, axes)?;
    for (part, area) in PARTS.iter().zip(parts.split_evenly((PARTS.len(), 1))) {
        draw_part(&area, axes, part, record)?;
    }
    root.present()
}

/// Draws the legend of all parts, in one line.
fn draw_legend(area: &DrawingArea<SVGBackend<'_>, Shift>, axes: &Axes) -> DrawingResult {
    let load = format!("load, at most {:.0}/s", axes.most_rate);
    let lines = [(60, LATENCY, "p99"), (140, CORES, "cores of the service"), (320, LOAD, &load)];
    for (x, colour, name) in lines {
        area.draw(&Rectangle::new([(x, 12), (x + 18, 17)], colour.filled()))?;
        area.draw(&Text::new(name, (x + 24, 7), ("sans-serif", 13)))?;
    }
    Ok(())
}

/// Draws one part: latencies against the left axis; cores, and the load as a share of its maximum, against the right one.
fn draw_part(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    axes: &Axes,
    part: &Part,
    record: &Record,
) -> DrawingResult {
    let seconds = 0.0..axes.most_s;
    let mut chart = ChartBuilder::on(area)
        .caption(part.title, ("sans-serif", 14))
        .margin(6)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .right_y_label_area_size(46)
        .build_cartesian_2d(seconds.clone(), axes.latencies_ms.clone().log_scale())?
        .set_secondary_coord(seconds, 0.0..axes.most_cores);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("seconds since the batch job began")
        .y_desc("p99, ms")
        .draw()?;
    chart.configure_secondary_axes().y_labels(axes.most_cores as usize + 1).y_desc("cores").draw()?;
    let load = part.points(record, REQUESTS).into_iter();
    let load = load.map(|(at, rate)| (at, rate / axes.most_rate * axes.most_cores));
    chart.draw_secondary_series(AreaSeries::new(load, 0.0, LOAD.mix(0.4)))?;
    let cores = part.points(record, CORES_OF_SERVICE);
    chart.draw_secondary_series(LineSeries::new(cores, CORES.stroke_width(2)))?;
    let latencies = part.points(record, P99_MS).into_iter().filter(|point| point.1 > 0.0);
    chart.draw_series(LineSeries::new(latencies, LATENCY.stroke_width(2)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::lines_of;
    use crate::record::tests::record;

    #[test]
    fn each_part_of_a_picture_has_the_lines_that_there_are_within_its_frame() {
        let mut record = record("colocation-p99", &[1.0], &[2.0]);
        assert_eq!(picture(&record), None);
        for (at, rate) in [(0, 100.0), (500, 4_000.0), (1_000, 900.0)] {
            record.point(REQUESTS, at).peer.push(rate);
            record.point(P99_MS, at).peer.extend([rate / 100.0, rate / 10.0, rate / 50.0]);
            record.point(REQUESTS, at).isola.push(rate);
            record.point(P99_MS, at).isola.push(0.3);
            record.point(CORES_OF_SERVICE, at).isola.push(1.5);
        }
        let svg = picture(&record).unwrap();
        // Linux's latencies, Isola's cores and latencies; nothing of a load of its own.
        let lines = lines_of(&svg, 3);
        assert_eq!(lines.len(), 3);
        let height = (PICTURE.1 - LEGEND_HEIGHT) / PARTS.len() as u32;
        for (points, part) in lines.iter().zip([0, 1, 1]) {
            assert!(points.is_sorted_by(|one, next| one.0 < next.0));
            let top = LEGEND_HEIGHT + part * height;
            let is_within = |&(x, y): &(u32, u32)| x <= PICTURE.0 && (top..top + height).contains(&y);
            assert!(points.iter().all(is_within), "{points:?}");
        }
        for part in PARTS {
            assert!(svg.contains(part.title), "{}", part.title);
        }
    }
}
