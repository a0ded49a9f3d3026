//! `ferrulectl top`: what each pod sends, receives and loses now.

mod columns;
mod rates;
mod screen;

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ferrule_proto::agent::{Attachment, ListAttachmentsRequest, agent_client::AgentClient};
use tonic::transport::Channel;

use self::{
    columns::table,
    rates::{Rate, Sort, rates},
    screen::{Key, Screen},
};
use crate::{
    client,
    filter::Filter,
    output::{Output, Report},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// What the first pods have the most of
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print one table and end, as without a terminal
    #[arg(long)]
    once: bool,
}

/// The attachments at one moment.
struct Look {
    at: Instant,
    attachments: Vec<Attachment>,
}

pub(crate) async fn run(args: &Args, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let mut agent = client::connect(socket).await?;
    let is_live =
        !args.once && output.is_for_people() && io::stdout().is_terminal() && io::stdin().is_terminal();
    let mut before = look(&mut agent, &args.filter).await?;
    if !is_live {
        tokio::time::sleep(Duration::from_secs(args.interval)).await;
        let now = look(&mut agent, &args.filter).await?;
        let rates = between(&before, &now, args.sort);
        return Ok(output.show(&rates, |rates| table(rates))?.into());
    }
    let mut screen = Screen::open().context("cannot use the terminal")?;
    let mut sort = args.sort;
    let mut shown = Vec::new();
    loop {
        let next = Instant::now() + Duration::from_secs(args.interval);
        loop {
            screen.draw(&shown, sort).context("cannot draw")?;
            match screen.key(next).context("cannot read the keyboard")? {
                Some(Key::Quit) => return Ok(Report::default()),
                Some(Key::Sort(other)) => {
                    sort = other;
                    rates::order(&mut shown, sort);
                }
                Some(Key::Redraw) => {}
                None => break,
            }
        }
        let now = look(&mut agent, &args.filter).await?;
        shown = between(&before, &now, sort);
        before = now;
    }
}

async fn look(agent: &mut AgentClient<Channel>, filter: &Filter) -> anyhow::Result<Look> {
    let listed = agent.list_attachments(ListAttachmentsRequest {}).await;
    let mut attachments =
        listed.map_err(|status| client::unanswered(status, "top"))?.into_inner().attachments;
    attachments.retain(|it| filter.is_empty() || filter.matches(&it.pod_namespace, &it.pod_name));
    Ok(Look { at: Instant::now(), attachments })
}

fn between(before: &Look, now: &Look, sort: Sort) -> Vec<Rate> {
    let mut rates = rates(&before.attachments, &now.attachments, now.at - before.at);
    rates::order(&mut rates, sort);
    rates
}
