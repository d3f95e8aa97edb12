//! Figures as SVG and PNG, drawn without a browser.
use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, fontdb};
use rquickjs::{Context, Function, Runtime};

use crate::{ECHARTS, FIGURE, Figure};

const STILL: &str = include_str!("../web/still.js");
const FONTS: [&[u8]; 2] =
    [include_bytes!("../assets/DejaVuSans.ttf"), include_bytes!("../assets/DejaVuSans-Bold.ttf")];
/// Of the fonts above.
const FAMILY: &str = "DejaVu Sans";
/// ECharts nests deeper than the interpreter's default allows.
const STACK_BYTES: usize = 4 << 20;

/// Why a figure could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// A table has nothing to draw.
    #[error("`{id}` is a table and has no picture; ask for csv or json")]
    Table {
        /// The figure.
        id: String,
    },
    /// The drawing code failed.
    #[error("figure `{id}` cannot be drawn: {reason}; this is an error in pagekeeper")]
    Script {
        /// The figure.
        id: String,
        /// What the interpreter said.
        reason: String,
    },
    /// The picture could not be made of the drawing.
    #[error("figure `{id}` cannot be made a picture: {reason}")]
    Picture {
        /// The figure.
        id: String,
        /// What went wrong.
        reason: String,
    },
}

/// Draws figures one after the other.
pub struct Stills {
    context: Context,
    fonts: Arc<fontdb::Database>,
}

impl Stills {
    /// Starts the interpreter and loads the fonts. System fonts serve letters that ours lack.
    ///
    /// # Errors
    /// [`DrawError::Script`] if the drawing code does not load.
    pub fn new() -> Result<Self, DrawError> {
        let failed = |reason: String| DrawError::Script { id: String::new(), reason };
        let runtime = Runtime::new().map_err(|error| failed(error.to_string()))?;
        runtime.set_max_stack_size(STACK_BYTES);
        let context = Context::full(&runtime).map_err(|error| failed(error.to_string()))?;
        let script = format!("{ECHARTS}\n{FIGURE}\n{STILL}");
        let loaded: Result<(), String> = context.with(|ctx| {
            ctx.eval::<(), _>(script)
                .map_err(|error| rquickjs::CaughtError::from_error(&ctx, error).to_string())
        });
        loaded.map_err(failed)?;
        let mut fonts = fontdb::Database::new();
        fonts.load_system_fonts();
        for font in FONTS {
            fonts.load_font_data(font.to_vec());
        }
        fonts.set_sans_serif_family(FAMILY);
        Ok(Self { context, fonts: Arc::new(fonts) })
    }

    /// The figure as an SVG document, so many units wide and high.
    ///
    /// # Errors
    /// [`DrawError::Table`], [`DrawError::Script`].
    pub fn svg(&self, figure: &Figure, width: u32, height: u32) -> Result<String, DrawError> {
        let id = figure.id.clone();
        if figure.chart.is_none() {
            return Err(DrawError::Table { id });
        }
        let text = serde_json::to_string(figure).expect("text keys and finite numbers");
        let drawn: Result<String, String> = self.context.with(|ctx| {
            let draw = || -> rquickjs::Result<String> {
                let draw: Function<'_> = ctx.globals().get("drawStill")?;
                draw.call((text, width, height))
            };
            draw().map_err(|error| rquickjs::CaughtError::from_error(&ctx, error).to_string())
        });
        drawn.map_err(|reason| DrawError::Script { id, reason })
    }

    /// The figure as a PNG, with two pixels to a unit.
    ///
    /// # Errors
    /// All of [`DrawError`].
    pub fn png(&self, figure: &Figure, width: u32, height: u32) -> Result<Vec<u8>, DrawError> {
        let svg = self.svg(figure, width, height)?;
        let failed = |reason: String| DrawError::Picture { id: figure.id.clone(), reason };
        let options = usvg::Options {
            font_family: FAMILY.to_owned(),
            fontdb: Arc::clone(&self.fonts),
            ..usvg::Options::default()
        };
        let tree =
            usvg::Tree::from_str(&svg, &options).map_err(|error| failed(error.to_string()))?;
        let mut pixels = Pixmap::new(2 * width, 2 * height)
            .ok_or_else(|| failed(format!("{width} × {height} is no size for a picture")))?;
        resvg::render(&tree, Transform::from_scale(2.0, 2.0), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| failed(error.to_string()))
    }
}
