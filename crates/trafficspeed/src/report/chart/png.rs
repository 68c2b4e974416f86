//! A chart's file as PNG. Drawing takes some fifty crates, which the cargo feature `png` brings;
//! without it every request is refused.

/// Why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    #[error(
        "this trafficspeed was built without PNG; build it with `cargo build --release -p trafficspeed`, which includes \
         the feature `png`, or use --svg"
    )]
    NotBuilt,
    #[error(
        "no font is installed to draw the text with; run `apt-get install fonts-dejavu-core`, or use --svg"
    )]
    NoFonts,
    #[error("drawing a picture: {0}; use --svg")]
    Draw(String),
}

/// Refuses PNG where this program was built without it, before anything is written.
///
/// # Errors
/// [`PngError::NotBuilt`].
pub fn check() -> Result<(), PngError> {
    if cfg!(feature = "png") { Ok(()) } else { Err(PngError::NotBuilt) }
}

#[cfg(not(feature = "png"))]
mod renderer {
    use super::PngError;

    pub struct Renderer;

    impl Renderer {
        pub fn with_system_fonts() -> Self {
            Self
        }

        pub fn png(&self, _svg: &str) -> Result<Vec<u8>, PngError> {
            Err(PngError::NotBuilt)
        }
    }
}

#[cfg(feature = "png")]
mod renderer {
    use std::fmt::Display;
    use std::sync::Arc;

    use resvg::tiny_skia::{Pixmap, Transform};
    use resvg::usvg::{Options, Tree, fontdb};

    use super::PngError;

    /// Pixels per unit of the chart: sharp in print at the width of a column.
    const SCALE: f32 = 2.5;

    pub struct Renderer(Arc<fontdb::Database>);

    impl Renderer {
        pub fn with_system_fonts() -> Self {
            let mut fonts = fontdb::Database::new();
            fonts.load_system_fonts();
            // The generic family is any that is there, rather than one that may not be.
            let family = fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone()));
            if let Some(family) = family {
                fonts.set_sans_serif_family(family);
            }
            Self(fonts.into())
        }

        /// Renders a file made by [`standalone::svg`](crate::report::chart::standalone::svg).
        ///
        /// # Errors
        /// [`PngError::NoFonts`], [`PngError::Draw`].
        pub fn png(&self, svg: &str) -> Result<Vec<u8>, PngError> {
            if self.0.is_empty() {
                return Err(PngError::NoFonts);
            }
            let draw = |why: &dyn Display| PngError::Draw(why.to_string());
            let options = Options { fontdb: Arc::clone(&self.0), ..Options::default() };
            let tree = Tree::from_str(svg, &options).map_err(|error| draw(&error))?;
            let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| draw(&"it has no size"))?;
            let mut pixels =
                Pixmap::new(size.width(), size.height()).ok_or_else(|| draw(&"it is too large"))?;
            resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
            pixels.encode_png().map_err(|error| draw(&error))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::report::chart::standalone::tests::chart;

        #[test]
        fn a_png_is_drawn_with_its_text_or_refused_without_fonts() {
            let none = Renderer(fontdb::Database::new().into());
            assert!(matches!(none.png(&chart()), Err(PngError::NoFonts)));
            let renderer = Renderer::with_system_fonts();
            if renderer.0.is_empty() {
                // A bare machine has no fonts; that it is refused there is all that can be asked.
                return;
            }
            let png = renderer.png(&chart()).unwrap();
            assert!(png.starts_with(b"\x89PNG"));
            let pixels = Pixmap::decode_png(&png).unwrap();
            assert_eq!((pixels.width(), pixels.height()), (1900, 255));
            // The label stands left of the plot, where nothing else is drawn.
            let left = pixels.pixels().iter().enumerate().filter(|(at, _)| at % 1900 < 500);
            assert!(left.filter(|(_, pixel)| pixel.red() < 100).count() > 20, "the text is drawn");
            assert!(matches!(renderer.png("<svg"), Err(PngError::Draw(_))));
        }
    }
}

pub use renderer::Renderer;
