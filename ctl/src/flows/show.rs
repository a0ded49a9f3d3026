//! Prints records: collected into an aligned table, or line by line as they come.

use std::io::ErrorKind;

use anyhow::Context as _;
use ferrule_proto::observer::{GetFlowsResponse, get_flows_response::ResponseTypes};

use super::{
    json::Json,
    row::{HEADER, row},
};
use crate::{
    output::{Output, Report},
    paint, print,
    table::{padded, table},
};

pub(super) struct Printer {
    format: Format,
    shown: usize,
}

enum Format {
    /// One object a line.
    Json(Json),
    /// One document for each.
    Yaml(Json),
    /// Printed at the end, when all widths are known.
    Table(Vec<[String; HEADER.len()]>),
    /// Printed line by line: a column is as wide as its widest cell so far.
    Following([usize; HEADER.len()]),
}

/// What columns of a table that is being followed have at least: a time, two pods with ports, TCP with flags,
/// a reason, an interface.
const WIDTHS: [usize; HEADER.len()] = [24, 24, 24, 12, 20, 14, 0];

// === impl Printer ===

impl Printer {
    pub(super) fn new(output: Output, follows: bool) -> anyhow::Result<Self> {
        let format = match output {
            Output::Json => Format::Json(Json::new()?),
            Output::Yaml => Format::Yaml(Json::new()?),
            Output::Table | Output::Wide if follows => Format::Following(WIDTHS),
            Output::Table | Output::Wide => Format::Table(Vec::new()),
        };
        Ok(Self { format, shown: 0 })
    }

    /// Returns whether anything still reads the output.
    pub(super) fn show(&mut self, response: &GetFlowsResponse) -> anyhow::Result<bool> {
        let flow = match &response.response_types {
            Some(ResponseTypes::Flow(flow)) => Some(flow),
            Some(ResponseTypes::LostEvents(_)) | None => None,
        };
        let is_first = self.shown == 0;
        let line = match (&mut self.format, flow) {
            (Format::Json(json), _) => json.line(response)?,
            (Format::Yaml(json), _) => format!("---\n{}", json.document(response)?),
            (_, None) => return Ok(true),
            (Format::Table(rows), Some(flow)) => {
                rows.push(row(flow));
                self.shown += 1;
                return Ok(true);
            }
            (Format::Following(widths), Some(flow)) => {
                let row = aligned(&row(flow), widths);
                if is_first { format!("{}\n{row}", aligned(&HEADER.map(str::to_owned), widths)) } else { row }
            }
        };
        self.shown += 1;
        match print(&line) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            printed => printed.context("cannot write the output").map(|()| true),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shown == 0
    }

    /// What is not printed yet.
    pub(super) fn finish(self) -> Report {
        match self.format {
            Format::Table(rows) if !rows.is_empty() => table(HEADER, rows.into_iter()).into(),
            Format::Table(_) | Format::Json(_) | Format::Yaml(_) | Format::Following(_) => Report::default(),
        }
    }
}

fn aligned<const N: usize>(row: &[String; N], widths: &mut [usize; N]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| {
        *width = (*width).max(paint::width(cell));
        padded(cell, *width)
    });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}
