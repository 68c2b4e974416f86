//! A chart as a file of its own: SVG with its style inside, or PNG.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// The page's style, whose light colours a file gets.
const PAGE: &str = include_str!("../page.css");
const STYLE: &str = include_str!("../chart.css");
/// Pixels of a PNG per unit of the chart: sharp in print at the width of a column.
const SCALE: f32 = 2.5;

/// Why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// Text could not be drawn.
    #[error(
        "no font is installed to draw the text with; run `apt-get install fonts-dejavu-core`, or use --svg"
    )]
    NoFonts,
    /// The picture could not be drawn.
    #[error("drawing a picture: {0}; use --svg")]
    Draw(String),
}

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

/// The fonts of this machine.
pub struct Fonts(fontdb::Database);

impl Fonts {
    pub fn of_system() -> Self {
        let mut fonts = fontdb::Database::new();
        fonts.load_system_fonts();
        // The generic family is any that is there, rather than one that may not be.
        let family = fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone()));
        if let Some(family) = family {
            fonts.set_sans_serif_family(family);
        }
        Self(fonts)
    }

    /// A file made by [`svg`] as PNG.
    ///
    /// # Errors
    /// [`PngError`].
    pub fn png(&self, svg: &str) -> Result<Vec<u8>, PngError> {
        if self.0.is_empty() {
            return Err(PngError::NoFonts);
        }
        let draw = |why: &dyn std::fmt::Display| PngError::Draw(why.to_string());
        let options = Options { fontdb: std::sync::Arc::new(self.0.clone()), ..Options::default() };
        let tree = Tree::from_str(svg, &options).map_err(|error| draw(&error))?;
        let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| draw(&"it has no size"))?;
        let mut pixels = Pixmap::new(size.width(), size.height()).ok_or_else(|| draw(&"it is too large"))?;
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| draw(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::markup::assert_well_formed;
    use super::super::{BarChart, Point};
    use super::*;

    fn chart() -> String {
        let bar = ("a <b>".to_owned(), 3, Point { x: 1.0, y: 4.0, range: None });
        svg(&BarChart { title: "t".into(), x_label: "Gbit/s".into(), bars: vec![bar] }.svg().unwrap())
    }

    #[test]
    fn a_file_has_its_size_and_colours_and_refers_to_nothing() {
        let text = chart();
        assert_well_formed(&text);
        assert!(text.contains(" width=\"760\" height=\"102\""), "{text}");
        assert!(text.contains("#a3478f") && !text.contains("var("), "{text}");
        assert!(!text.contains("url(") && !text.contains("href"));
    }

    #[test]
    fn a_png_is_drawn_with_its_text_or_refused_without_fonts() {
        let none = Fonts(fontdb::Database::new());
        assert!(matches!(none.png(&chart()), Err(PngError::NoFonts)));
        let fonts = Fonts::of_system();
        if fonts.0.is_empty() {
            // A bare machine has no fonts; that it is refused there is all that can be asked.
            return;
        }
        let png = fonts.png(&chart()).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        let pixels = Pixmap::decode_png(&png).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (1900, 255));
        // The label stands left of the plot, where nothing else is drawn.
        let left = pixels.pixels().iter().enumerate().filter(|(at, _)| at % 1900 < 500);
        assert!(left.filter(|(_, pixel)| pixel.red() < 100).count() > 20, "the text is drawn");
        assert!(matches!(fonts.png("<svg"), Err(PngError::Draw(_))));
    }
}
