//! A bar chart in SVG, readable on light and dark pages.

use std::fmt::Write as _;

pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) groups: Vec<Group>,
}

pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
}

pub(crate) struct Bar {
    pub(crate) name: String,
    /// Of the longest bar's; not a number if nothing was measured.
    pub(crate) share: f64,
    pub(crate) is_ours: bool,
}

// In pixels.
const WIDTH: f64 = 640.0;
/// Where bars begin; their names are on the left.
const LEFT: f64 = 90.0;
/// Of a share of 1; room for a number stays on the right.
const FULL: f64 = 480.0;
const ROW: f64 = 24.0;
const THICK: f64 = 16.0;
/// Height of a group's or the chart's title.
const HEAD: f64 = 34.0;

/// Text, bars, and Ferrule's bars. The media query follows the reader's setting, also inside `<img>`.
const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.bar { fill: #8c959f; }
.ours { fill: #0969da; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .bar { fill: #6e7681; }
  .ours { fill: #58a6ff; }
}";

// === impl Chart ===

impl Chart {
    pub(crate) fn to_svg(&self) -> String {
        let rows: usize = self.groups.iter().map(|it| it.bars.len()).sum();
        let height = HEAD * (1.0 + self.groups.len() as f64) + ROW * rows as f64 + ROW / 2.0;
        let longest = self.groups.iter().flat_map(|it| &it.bars).map(|it| it.share).fold(1.0, f64::max);
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
             <title>{title}</title>\n<style>\n{STYLE}\n</style>\n"
        );
        let mut y = HEAD - 12.0;
        svg += &text("title", 0.0, y, &self.title);
        for group in &self.groups {
            y += HEAD;
            svg += &text("name", LEFT, y, &group.name);
            y += ROW - THICK;
            for bar in &group.bars {
                svg += &bar.to_svg(y, longest);
                y += ROW;
            }
            y -= ROW - THICK;
        }
        svg + "</svg>\n"
    }
}

// === impl Bar ===

impl Bar {
    fn to_svg(&self, y: f64, longest: f64) -> String {
        let measured = self.share.is_finite();
        let width = if measured { (self.share.max(0.0) / longest * FULL).round() } else { 0.0 };
        let class = if self.is_ours { "bar ours" } else { "bar" };
        let number = if measured { format!("{:.2}", self.share) } else { "–".to_owned() };
        let base = y + THICK - 3.0;
        let mut svg = text(if self.is_ours { "title" } else { "name" }, 0.0, base, &self.name);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{THICK}\" rx=\"2\"/>"
        );
        svg + &text("number", LEFT + width + 8.0, base, &number)
    }
}

fn text(class: &str, x: f64, y: f64, text: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>\n", escape(text))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn svg(shares: &[f64]) -> String {
        let bar = |share: &f64| Bar { name: "a<b & \"c\"".to_owned(), share: *share, is_ours: false };
        let group = Group { name: "one".to_owned(), bars: shares.iter().map(bar).collect() };
        Chart { title: "t".to_owned(), groups: vec![group] }.to_svg()
    }

    #[test]
    fn bars_are_to_scale() {
        let svg = svg(&[1.0, 0.5, f64::NAN]);
        let widths: Vec<_> = svg.split("width=\"").skip(1).filter_map(|it| it.split('"').next()).collect();
        assert_eq!(widths, ["480", "240", "0"]);
    }

    #[test]
    fn the_longest_bar_fits() {
        let svg = svg(&[1.6, 0.8]);
        assert!(svg.contains("width=\"480\"") && svg.contains("width=\"240\""), "{svg}");
        assert!(svg.contains(">1.60<"), "{svg}");
    }

    #[test]
    fn names_cannot_break_the_picture() {
        assert!(svg(&[1.0]).contains(">a&lt;b &amp; &quot;c&quot;<"));
    }
}
