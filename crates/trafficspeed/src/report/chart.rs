//! Charts as inline SVG, drawn by their data alone.
//!
//! Colours come from the page's style (`.s0` to `.s5`), so that one picture is right on screen, in dark mode and in
//! print; every series also has a marker shape and a dash pattern of its own, so that it needs no colour. Text from
//! outside is escaped. Charts know nothing of VPNs.

mod axis;

use std::fmt::Write as _;

use axis::Axis;

/// Series that can be told apart; more share the last style.
pub const STYLES: usize = 6;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const PLOT_HEIGHT: f64 = 280.0;
const BELOW: f64 = 52.0;
const LEGEND_LINE: f64 = 22.0;
const MOST_MARKERS: usize = 24;

/// A line with a marker per point.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// Which style, so that one system looks the same in all pictures.
    pub style: usize,
    /// Its points from left to right.
    pub points: Vec<Point>,
}

/// One value, with the range of its repeats if there were any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where on the horizontal axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Lowest and highest of the repeats.
    pub range: Option<(f64, f64)>,
}

/// How the horizontal axis is laid out.
#[derive(Clone, Debug, PartialEq)]
pub enum Horizontal {
    /// Doubling steps at equal distances, with a tick at each of these values.
    Doubling(Vec<f64>),
    /// From zero to this value.
    Linear(f64),
}

/// A chart of lines over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// What it shows, read aloud by screen readers.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x_label: String,
    /// The vertical axis, with its unit.
    pub y_label: String,
    /// The horizontal axis' layout.
    pub horizontal: Horizontal,
    /// The lines.
    pub series: Vec<Series>,
}

impl LineChart {
    /// The picture, or nothing if there is no point to draw.
    pub fn svg(&self) -> Option<String> {
        let highest = self
            .series
            .iter()
            .flat_map(|series| &series.points)
            .map(|point| point.range.map_or(point.y, |(_, high)| high.max(point.y)))
            .fold(None, |highest: Option<f64>, y| Some(highest.map_or(y, |h| h.max(y))))?;
        let legend = self.legend();
        let top = legend.height + 14.0;
        let bottom = top + PLOT_HEIGHT;
        let vertical = Axis::from_zero(highest, bottom, top);
        let horizontal = match &self.horizontal {
            Horizontal::Doubling(values) => Axis::doubling(values, LEFT + 40.0, WIDTH - RIGHT - 40.0),
            Horizontal::Linear(end) => Axis::linear(*end, LEFT, WIDTH - RIGHT),
        };
        let mut body = open(&self.title, bottom + BELOW);
        body.push_str(&legend.text);
        grid(&mut body, &vertical, &self.y_label, top);
        ticks(&mut body, &horizontal, &self.x_label, bottom);
        for series in &self.series {
            line(&mut body, series, &horizontal, &vertical);
        }
        body.push_str("</svg>\n");
        Some(body)
    }

    fn legend(&self) -> Legend {
        let mut text = String::new();
        let (mut x, mut y) = (LEFT, 14.0);
        for series in &self.series {
            let width = 52.0 + 7.0 * series.label.chars().count() as f64;
            if x > LEFT && x + width > WIDTH - RIGHT {
                (x, y) = (LEFT, y + LEGEND_LINE);
            }
            let style = series.style.min(STYLES - 1);
            put(&mut text, format_args!(r#"<path class="line s{style}" d="M{x:.1} {y:.1}h26"/>"#));
            text.push_str(&marker(style, x + 13.0, y));
            let label = escape(&series.label);
            put(&mut text, format_args!(r#"<text x="{:.1}" y="{:.1}">{label}</text>"#, x + 32.0, y + 4.0));
            x += width;
        }
        Legend { text, height: y + 12.0 }
    }
}

struct Legend {
    text: String,
    height: f64,
}

/// One bar per row; for comparisons at a single number of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// The axis, with its unit.
    pub x_label: String,
    /// Name, style and value of each bar.
    pub bars: Vec<(String, usize, Point)>,
}

impl BarChart {
    /// The picture, or nothing if there is no bar.
    pub fn svg(&self) -> Option<String> {
        const ROW: f64 = 40.0;
        const LABELS: f64 = 210.0;
        let top_of = |point: &Point| point.range.map_or(point.y, |(_, high)| high.max(point.y));
        let highest = self.bars.iter().map(|(_, _, point)| top_of(point)).reduce(f64::max)?;
        // Room to the right of the longest bar holds its figure.
        let axis = Axis::from_zero(highest, LABELS, WIDTH - RIGHT - 60.0);
        let bottom = 10.0 + ROW * self.bars.len() as f64;
        let mut body = open(&self.title, bottom + BELOW);
        for tick in axis.ticks() {
            put(
                &mut body,
                format_args!(r#"<path class="grid" d="M{:.1} 6V{bottom:.1}"/>"#, axis.place(tick.value)),
            );
        }
        ticks(&mut body, &axis, &self.x_label, bottom);
        for ((label, style, point), row) in self.bars.iter().zip(0_u32..) {
            let y = 10.0 + ROW * f64::from(row);
            let (style, end) = ((*style).min(STYLES - 1), axis.place(point.y));
            let middle = y + ROW / 2.0 - 2.0;
            let width = end - LABELS;
            put(
                &mut body,
                format_args!(
                    r#"<rect class="bar s{style}" x="{LABELS}" y="{:.1}" width="{width:.1}" height="22"/>"#,
                    middle - 11.0
                ),
            );
            let mut figure_at = end;
            if let Some((low, high)) = point.range {
                let (low, high) = (axis.place(low), axis.place(high));
                put(
                    &mut body,
                    format_args!(
                        r#"<path class="range" d="M{low:.1} {middle:.1}H{high:.1}M{low:.1} {a:.1}v10M{high:.1} {a:.1}v10"/>"#,
                        a = middle - 5.0
                    ),
                );
                figure_at = high;
            }
            let baseline = middle + 4.0;
            let (label, figure) = (escape(label), super::significant(point.y));
            put(
                &mut body,
                format_args!(
                    r#"<text x="{:.1}" y="{baseline:.1}" text-anchor="end">{label}</text>"#,
                    LABELS - 10.0
                ),
            );
            put(
                &mut body,
                format_args!(
                    r#"<text class="figure" x="{:.1}" y="{baseline:.1}">{figure}</text>"#,
                    figure_at + 8.0
                ),
            );
        }
        put(&mut body, format_args!(r#"<path class="axis" d="M{LABELS} 6V{bottom:.1}"/>"#));
        body.push_str("</svg>\n");
        Some(body)
    }
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"{title}\">\n<title>{title}</title>\n"
    )
}

fn grid(body: &mut String, vertical: &Axis, label: &str, top: f64) {
    for tick in vertical.ticks() {
        let y = vertical.place(tick.value);
        let right = WIDTH - RIGHT;
        let class = if tick.value == 0.0 { "axis" } else { "grid" };
        put(body, format_args!(r#"<path class="{class}" d="M{LEFT} {y:.1}H{right}"/>"#));
        put(
            body,
            format_args!(
                r#"<text class="tick" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 8.0,
                y + 4.0,
                tick.label
            ),
        );
    }
    let middle = top + PLOT_HEIGHT / 2.0;
    let label = escape(label);
    put(
        body,
        format_args!(
            r#"<text class="label" transform="translate(16 {middle:.1}) rotate(-90)" text-anchor="middle">{label}</text>"#
        ),
    );
}

fn ticks(body: &mut String, horizontal: &Axis, label: &str, bottom: f64) {
    for tick in horizontal.ticks() {
        let x = horizontal.place(tick.value);
        put(body, format_args!(r#"<path class="axis" d="M{x:.1} {bottom:.1}v5"/>"#));
        put(
            body,
            format_args!(
                r#"<text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                bottom + 19.0,
                tick.label
            ),
        );
    }
    let (middle, y) = (horizontal.middle(), bottom + 42.0);
    let label = escape(label);
    put(
        body,
        format_args!(r#"<text class="label" x="{middle:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#),
    );
}

fn line(body: &mut String, series: &Series, horizontal: &Axis, vertical: &Axis) {
    let style = series.style.min(STYLES - 1);
    let mut path = String::new();
    for (point, letter) in series.points.iter().zip(std::iter::once('M').chain(std::iter::repeat('L'))) {
        write!(path, "{letter}{:.1} {:.1}", horizontal.place(point.x), vertical.place(point.y))
            .expect("writing to a string");
    }
    put(body, format_args!(r#"<path class="line s{style}" d="{path}"/>"#));
    // Many points are a line with a few markers to know it by.
    let stride = series.points.len().div_ceil(MOST_MARKERS);
    for (point, number) in series.points.iter().zip(0..) {
        let (x, y) = (horizontal.place(point.x), vertical.place(point.y));
        if let Some((low, high)) = point.range {
            let (low, high) = (vertical.place(low), vertical.place(high));
            let left = x - 4.0;
            put(
                body,
                format_args!(
                    r#"<path class="range s{style}" d="M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}h8M{left:.1} {high:.1}h8"/>"#
                ),
            );
        }
        if number % stride == 0 {
            body.push_str(&marker(style, x, y));
        }
    }
}

/// A shape per style, so that lines can be told apart without colour.
fn marker(style: usize, x: f64, y: f64) -> String {
    let d = match style {
        0 => format!("M{x:.1} {y:.1}m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z"),
        1 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        2 => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.5),
        3 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
        4 => format!("M{x:.1} {:.1}l-5 -9h10z", y + 5.5),
        _ => format!("M{:.1} {:.1}h3v3h3v3h-3v3h-3v-3h-3v-3h3z", x - 1.5, y - 4.5),
    };
    format!("<path class=\"mark s{style}\" d=\"{d}\"/>\n")
}

/// Text that is safe in HTML and XML, also within quotes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

fn put(body: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(body, "{line}").expect("writing to a string");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether every element is closed, in order, and no stray `<` or bad number is there.
    fn assert_well_formed(svg: &str) {
        let mut open = Vec::new();
        for part in svg.split('<').skip(1) {
            let (tag, _) = part.split_once('>').expect("every `<` has its `>`");
            let name = |tag: &str| tag.split_whitespace().next().expect("a name").to_owned();
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(closed), "in {svg}");
            } else if !tag.ends_with('/') {
                open.push(name(tag));
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes are balanced in <{tag}>");
        }
        assert!(open.is_empty(), "{open:?} stay open");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, range: Some((y * 0.9, y * 1.1)) }
    }

    fn chart(points: Vec<Point>, horizontal: Horizontal) -> LineChart {
        let series = ["a <b>", "c & \"d\""]
            .into_iter()
            .enumerate()
            .map(|(style, label)| Series { label: label.into(), style, points: points.clone() })
            .collect();
        LineChart {
            title: "t<".into(),
            x_label: "clients".into(),
            y_label: "Gbit/s".into(),
            horizontal,
            series,
        }
    }

    #[test]
    fn a_curve_is_well_formed_escaped_and_has_ticks_and_units() {
        let points = vec![point(2.0, 3.0), point(4.0, 5.0), point(16.0, 4.0)];
        let svg = chart(points, Horizontal::Doubling(vec![2.0, 4.0, 16.0])).svg().unwrap();
        assert_well_formed(&svg);
        for expected in
            [">clients</text>", ">Gbit/s</text>", ">16</text>", "a &lt;b&gt;", "c &amp; &quot;d&quot;"]
        {
            assert!(svg.contains(expected), "{expected} is missing");
        }
        assert_eq!(svg.matches("class=\"mark").count(), 2 * 3 + 2, "a marker per point and per legend entry");
    }

    #[test]
    fn extremes_are_drawn_without_bad_numbers_and_nothing_is_no_picture() {
        for points in [vec![point(0.0, 0.0)], vec![point(3.0, 1e-9)], vec![point(1.0, 4e12), point(2.0, 1.0)]]
        {
            assert_well_formed(&chart(points.clone(), Horizontal::Linear(3.0)).svg().unwrap());
            let xs = points.iter().map(|p| p.x.max(2.0)).collect();
            assert_well_formed(&chart(points, Horizontal::Doubling(xs)).svg().unwrap());
        }
        assert_eq!(chart(vec![], Horizontal::Linear(3.0)).svg(), None);
    }

    #[test]
    fn bars_are_well_formed_and_carry_their_figures() {
        let bars = vec![("plain".into(), 0, point(0.0, 12.34)), ("x<y".into(), 99, point(0.0, 0.0))];
        let svg = BarChart { title: "t".into(), x_label: "Gbit/s".into(), bars }.svg().unwrap();
        assert_well_formed(&svg);
        assert!(svg.contains(">12.3</text>") && svg.contains("x&lt;y"));
        assert_eq!(BarChart { title: "t".into(), x_label: "x".into(), bars: vec![] }.svg(), None);
    }
}
