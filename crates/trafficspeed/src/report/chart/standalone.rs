//! A chart as a separate file: SVG with its style inside.

/// The page's style, whose light colours a file gets.
const PAGE: &str = include_str!("../page.css");
const STYLE: &str = include_str!("../chart.css");

/// A chart as a file: with size, white ground and style.
pub fn svg(chart: &str) -> String {
    let style = STYLE.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n");
    let mut style = light(&style);
    style.push_str("\ntext { font-family: 'DejaVu Sans', Arial, sans-serif; }");
    let ground = r##"<rect width="100%" height="100%" fill="#ffffff"/>"##;
    match chart.split_once(">\n") {
        Some((head, body)) => format!("{head}{}>\n<style>{style}</style>\n{ground}\n{body}", size(head)),
        None => chart.to_owned(),
    }
}

/// Width and height of the view box as attributes: programs that show a file want to know its size.
fn size(head: &str) -> String {
    let view = head.split("viewBox=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let numbers: Vec<&str> = view.split(' ').collect();
    match numbers[..] {
        [_, _, width, height] => format!(" width=\"{width}\" height=\"{height}\""),
        _ => String::new(),
    }
}

/// `style` with the colours of the page's light mode in the place of their names.
fn light(style: &str) -> String {
    let root = PAGE.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(root, _)| root);
    let colours = root.split(';').filter_map(|line| line.trim().strip_prefix("--")?.split_once(':'));
    colours.fold(style.to_owned(), |style, (name, colour)| {
        style.replace(&format!("var(--{})", name.trim()), colour.trim())
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::markup::assert_well_formed;
    use super::super::{BarChart, Measure, Point};
    use super::*;

    pub(in crate::report::chart) fn chart() -> String {
        let bar = ("a <b>".to_owned(), 3, Point { x: 1.0, y: 4.0, range: None });
        let measure = Measure::higher_is_better("Gbit/s");
        svg(&BarChart { title: "t".into(), measure, bars: vec![bar] }.svg().unwrap())
    }

    #[test]
    fn a_file_has_its_size_and_colours_and_refers_to_nothing() {
        let text = chart();
        assert_well_formed(&text);
        assert!(text.contains(" width=\"500\" height=\"108\""), "{text}");
        assert!(text.contains("#a3478f") && !text.contains("var("), "{text}");
        assert!(!text.contains("url(") && !text.contains("href"));
    }
}
