//! Draws the results: how many times faster than the peer, on a logarithmic scale.

use std::fmt::Write as _;

use super::Row;

const WIDTH: f64 = 860.0;
const ROW_HEIGHT: f64 = 46.0;
const TOP: f64 = 40.0;
/// Bars end here for a thousand times.
const BAR_WIDTH: f64 = 620.0;

/// An SVG picture of the rows that have a peer to be compared with.
pub(super) fn draw(rows: &[Row]) -> String {
    let compared: Vec<_> = rows.iter().filter_map(|row| Some((row, row.theirs?.seconds / row.ours.seconds))).collect();
    let height = TOP + ROW_HEIGHT * compared.len() as f64 + 24.0;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="#fff"/>
<text x="10" y="22" font-size="15" font-weight="bold">Times faster than the peer, in one run (logarithmic)</text>
"##
    );
    for (decade, times) in [1.0, 10.0, 100.0, 1000.0].into_iter().enumerate() {
        let x = 10.0 + BAR_WIDTH * decade as f64 / 3.0;
        let _ = writeln!(
            svg,
            r##"<line x1="{x}" y1="{TOP}" x2="{x}" y2="{}" stroke="#ddd"/><text x="{x}" y="{}" fill="#888" font-size="11">{times}×</text>"##,
            height - 20.0,
            height - 6.0
        );
    }
    for (index, (row, ratio)) in compared.iter().enumerate() {
        let y = TOP + ROW_HEIGHT * index as f64;
        let length = (BAR_WIDTH * ratio.max(1.0).log10() / 3.0).clamp(2.0, BAR_WIDTH);
        let _ = writeln!(
            svg,
            r##"<text x="10" y="{}">{} <tspan fill="#777">against {}</tspan></text>
<rect x="10" y="{}" width="{length:.1}" height="16" fill="#2b7a78"/><text x="{:.1}" y="{}" font-weight="bold">{ratio:.2}×</text>"##,
            y + 14.0,
            plain(&row.work),
            plain(&row.peer),
            y + 20.0,
            length + 16.0,
            y + 33.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Markdown without its marks and asides, fit for XML, and short enough for a line.
fn plain(text: &str) -> String {
    let text: String = text.split(" (").next().unwrap_or_default().chars().filter(|c| *c != '`').take(62).collect();
    text.replace('&', "&amp;").replace('<', "&lt;")
}
