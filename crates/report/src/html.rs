//! A report as one HTML file without external resources: zoomable plots (uPlot, inlined), bars,
//! tables, provenance; light and dark.

use minijinja::{AutoEscape, Environment, Value, context};
use serde::Serialize;
use thiserror::Error;

use lowtide_analysis::metrics::DEFINITIONS;
use lowtide_analysis::metrics::Metric;
use lowtide_analysis::study_report::StudyReport;
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::machine::Machine;

use crate::read::LoadedRecord;
use crate::svg::{self, CONNECTIONS, INNER, OUTER, PALETTE, PALETTE_ON_DARK, Theme};
use crate::table::{self, Cell, Table, TableRow};
use crate::view::{Curve, CurveGroup, View, names};

/// Why a report could not be made.
#[derive(Debug, Error)]
#[error("the report could not be created: {0}")]
pub struct HtmlError(String);

impl HtmlError {
    pub(crate) fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Renders the page of one process: a head with `title`, `pid` and `facts`, and what a template
/// shows of the context. `style` are rules for this page alone.
///
/// # Errors
/// Fails if the template fails, which would be a defect of lowtide.
pub(crate) fn process_page(
    template: &str,
    style: &str,
    context: Value,
) -> Result<String, HtmlError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let parts = [
        include_str!("../assets/head.html"),
        include_str!("../assets/process_head.html"),
        template,
        include_str!("../assets/process_foot.html"),
    ];
    let context = context! {
        css => include_str!("../assets/report.css"),
        palette => pairs(&PALETTE),
        palette_on_dark => pairs(&PALETTE_ON_DARK),
        version => env!("CARGO_PKG_VERSION"),
        style,
        ..context
    };
    environment.render_str(&parts.concat(), context).map_err(HtmlError::new)
}

/// Renders a report of some records, overlaid on each other, and of others beside them, each on
/// axes of its own. `subtitle` names the command and the machine.
///
/// # Errors
/// Fails if the template fails, which would be a defect of lowtide.
pub fn render(
    records: &[LoadedRecord],
    beside: &[LoadedRecord],
    subtitle: &str,
) -> Result<String, HtmlError> {
    let views = View::with_those_beside(records, beside);
    let error = |e: &dyn std::fmt::Display| HtmlError(e.to_string());
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    // The macro precedes the page, so that both are one template.
    let template = concat!(
        include_str!("../assets/grid.html"),
        include_str!("../assets/head.html"),
        include_str!("../assets/report.html")
    );
    environment.add_template("report.html", template).map_err(|e| error(&e))?;
    let data: Vec<Data> = views.iter().map(Data::new).collect();
    let data = serde_json::to_string(&data).map_err(|e| error(&e))?;
    let studies: Vec<Value> =
        records.iter().zip(names(records)).map(|(r, name)| section(r, name)).collect();
    let sections: Vec<Value> = views
        .iter()
        .enumerate()
        .map(|(place, view)| view_section(view, place.checked_sub(1).and_then(|p| beside.get(p))))
        .collect();
    let template = environment.get_template("report.html").map_err(|e| error(&e))?;
    let page = template.render(context! {
        definitions => DEFINITIONS,
        title => views[0].title.clone(),
        subtitle,
        several => studies.len() > 1,
        studies,
        views => sections,
        palette => pairs(&PALETTE),
        palette_on_dark => pairs(&PALETTE_ON_DARK),
        connections => vec![CONNECTIONS.0, CONNECTIONS.1],
        inner => vec![INNER.0, INNER.1],
        outer => vec![OUTER.0, OUTER.1],
        version => env!("CARGO_PKG_VERSION"),
        // Without this character, the text can neither close nor open an element.
        data => data.replace('<', "\\u003c"),
        css => include_str!("../assets/report.css"),
        js => include_str!("../assets/report.js"),
        uplot_css => include_str!("../assets/uPlot.min.css"),
        uplot_js => include_str!("../assets/uPlot.iife.min.js"),
    });
    page.map(|page| page.trim_start().to_owned()).map_err(|e| error(&e))
}

/// Returns the context of a view's plots: titles and bars; for records beside the main ones also
/// their table.
fn view_section(view: &View, beside: Option<&LoadedRecord>) -> Value {
    context! {
        title => view.title.clone(),
        about => beside.and_then(|record| record.study.plan.about.clone()),
        source => beside.and_then(|record| record.source.clone()),
        summary => beside.map(|record| grid(table::summary(&record.study))),
        repeats => view.groups.iter().any(|g| g.curves.len() > 1),
        pss => view.metric == Metric::Pss,
        lazyfree => lazyfree_matters(view),
        connections => view.most_connections() > 0,
        in_flight => view.has_in_flight(),
        inner => view.has_inner(),
        tasks => view.has_tasks(),
        course_svg => svg::course(view, Theme::Page).svg,
        bars_svg => svg::bars(view, Theme::Page, svg::WIDTH).svg,
        narrow_bars_svg => svg::bars(view, Theme::Page, svg::NARROW).svg,
    }
}

fn pairs(palette: &[(&'static str, &'static str)]) -> Vec<Vec<&'static str>> {
    palette.iter().map(|(dark, light)| vec![*dark, *light]).collect()
}

/// The data that the page's script draws.
#[derive(Serialize)]
struct Data {
    title: String,
    time_from: &'static str,
    metric: Metric,
    from: f64,
    to: f64,
    top: f64,
    most_connections: u64,
    most_counted: u64,
    pss: bool,
    lazyfree: bool,
    groups: Vec<DataGroup>,
}

#[derive(Serialize)]
struct DataGroup {
    label: String,
    colour: usize,
    settled: String,
    curves: Vec<DataCurve>,
}

/// One trial, column by column.
#[derive(Serialize)]
struct DataCurve {
    repeat: u32,
    t: Vec<f64>,
    rss: Vec<u64>,
    anon: Vec<u64>,
    vsz: Vec<u64>,
    pss: Vec<Option<u64>>,
    lazyfree: Vec<Option<u64>>,
    connections: Vec<Option<u64>>,
    marks: Vec<(f64, String)>,
    acts: Vec<(f64, String)>,
    inner: ChartLine,
    in_flight: ChartLine,
    tasks: ChartLine,
}

/// A line with times of its own.
type ChartLine = (Vec<f64>, Vec<u64>);

fn line(points: &[(f64, u64)]) -> ChartLine {
    points.iter().map(|(t, value)| (milliseconds(*t), *value)).unzip()
}

fn milliseconds(t: f64) -> f64 {
    (t * 1000.0).round() / 1000.0
}

impl Data {
    fn new(view: &View) -> Self {
        let (from, to) = view.span();
        Self {
            title: view.title.clone(),
            time_from: view.time_from,
            metric: view.metric,
            from,
            to,
            top: view.top(),
            most_connections: view.most_connections(),
            most_counted: view.most_counted(),
            pss: view.metric == Metric::Pss,
            lazyfree: lazyfree_matters(view),
            groups: view.groups.iter().map(DataGroup::new).collect(),
        }
    }
}

impl DataGroup {
    fn new(group: &CurveGroup) -> Self {
        Self {
            label: group.label.clone(),
            colour: group.colour % PALETTE.len(),
            settled: group.bar_text(2),
            curves: group.curves.iter().map(DataCurve::new).collect(),
        }
    }
}

impl DataCurve {
    fn new(curve: &Curve) -> Self {
        let points = &curve.points;
        Self {
            repeat: curve.repeat,
            t: points.iter().map(|p| milliseconds(p.t_s)).collect(),
            rss: points.iter().map(|p| p.rss).collect(),
            anon: points.iter().map(|p| p.anon).collect(),
            vsz: points.iter().map(|p| p.vsz).collect(),
            pss: points.iter().map(|p| p.pss).collect(),
            lazyfree: points.iter().map(|p| p.lazyfree).collect(),
            connections: points.iter().map(|p| p.connections).collect(),
            marks: curve.marks.clone(),
            acts: curve.acts.clone(),
            inner: line(&curve.inner),
            in_flight: line(&curve.in_flight),
            tasks: line(&curve.tasks),
        }
    }
}

fn lazyfree_matters(view: &View) -> bool {
    let points = view.groups.iter().flat_map(|g| &g.curves).flat_map(|c| &c.points);
    points.filter_map(|p| p.lazyfree).any(|bytes| bytes > 1 << 20)
}

fn section(record: &LoadedRecord, name: String) -> Value {
    let study = &record.study;
    let resolved = study.recommendation.as_ref().is_some_and(|r| r.resolved);
    let doubtful = study.trials.iter().any(|t| !t.is_usable());
    context! {
        name,
        about => study.plan.about.clone(),
        source => record.source.clone(),
        recommendation => table::conclusion(study),
        resolved,
        incomplete => table::incomplete(study),
        warnings => study.warnings.clone(),
        notes => record.notes.clone(),
        summary => grid(table::summary(study)),
        versions => table::versions(study).map(grid),
        policies => table::policies(study).map(grid),
        rounds => table::rounds(study).map(grid),
        latencies => table::latencies(study).map(grid),
        per_connection => table::per_connection(study).map(grid),
        trends => table::trends(study).map(grid),
        phases => table::phases(study).map(grid),
        durations => table::durations(study).map(grid),
        ledgers => table::ledgers(study).map(grid),
        pins => table::pins(study).map(grid),
        heaps => table::heaps(study).map(grid),
        trials => grid(trials(study)),
        doubtful,
        provenance => provenance(record),
    }
}

/// Returns a table in the form that the template expects.
fn grid(table: Table) -> Value {
    let rows: Vec<Value> = table
        .rows
        .into_iter()
        .map(|TableRow { cells, recommended, warning }| {
            let cells: Vec<String> = cells.into_iter().map(|c| c.full).collect();
            context! { cells, recommended, warning }
        })
        .collect();
    context! { heads => table.heads, caption => table.caption, rows }
}

fn trials(study: &StudyReport) -> Table {
    let bytes = |b: Option<u64>| b.map_or("–".to_owned(), |b| Human(b).to_string());
    let seconds = |s: Option<f64>| s.map_or("–".to_owned(), |s| HumanSeconds(s).to_string());
    let rows = study
        .trials
        .iter()
        .map(|t| TableRow {
            cells: [
                format!("{} · {} · repeat {}", t.number, t.treatment, t.repeat),
                t.outcome.name().to_owned(),
                match t.allocator_active {
                    Some(true) => "yes".to_owned(),
                    Some(false) => "no".to_owned(),
                    None => "?".to_owned(),
                },
                bytes(t.baseline_bytes),
                bytes(t.peak_bytes),
                bytes(t.settled_bytes),
                bytes(t.vsz_peak_bytes),
                bytes(t.lazyfree_bytes),
                t.minor_faults.map_or("–".to_owned(), |n| n.to_string()),
                t.major_faults.map_or("–".to_owned(), |n| n.to_string()),
                seconds(t.wall_s),
                seconds(t.cpu_s),
            ]
            .map(Cell::from)
            .to_vec(),
            recommended: false,
            warning: t.failed_because.clone().or(t
                .allocator_inactive_because
                .clone()
                .filter(|_| t.allocator_active != Some(true))),
        })
        .collect();
    Table {
        caption: "In the order of execution".to_owned(),
        heads: table::heads(&[
            "trial",
            "outcome",
            "in force",
            "baseline",
            "peak",
            "settled",
            "VSZ peak",
            "LazyFree",
            "minor faults",
            "major faults",
            "wall",
            "CPU",
        ]),
        rows,
    }
}

/// A name, and its value if that is known.
type Fact = (&'static str, Option<String>);

/// Returns the settings of a study.
fn settings(study: &StudyReport) -> [Fact; 6] {
    let plan = &study.plan;
    let rounds = || {
        format!(
            "{} (after {} of warm-up), pause {}, settle {}",
            plan.rounds,
            plan.warmup_rounds,
            HumanSeconds(plan.pause_s),
            HumanSeconds(plan.settle_s)
        )
    };
    [
        ("command", Some(study.command.join(" "))),
        ("load", plan.load.clone()),
        ("rounds", plan.load.as_ref().map(|_| rounds())),
        ("repeats", Some(format!("{}, order drawn from seed {}", plan.repeats, study.seed))),
        ("sampled every", Some(HumanSeconds(plan.interval_s).to_string())),
        ("started", Some(format!("{} (Unix time)", study.started_unix_s as u64))),
    ]
}

/// Returns the facts about a machine.
fn machine(m: &Machine) -> [Fact; 6] {
    let size = |bytes: Option<u64>| bytes.map(|bytes| Human(bytes).to_string());
    let joined = |parts: &[Option<String>]| {
        let known: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
        Some(known.join(", ")).filter(|text| !text.is_empty())
    };
    let cpus = m.cpus.map(|count| format!("{count} CPUs"));
    let kernel = m.kernel.as_ref().map(|kernel| format!("kernel {kernel}"));
    let defrag = m.thp_defrag.as_ref().map(|defrag| format!("defrag {defrag}"));
    [
        ("machine", joined(&[m.cpu.clone(), cpus, size(m.memory_bytes)])),
        ("cgroup memory limit", size(m.cgroup_limit_bytes)),
        ("swap", size(m.swap_bytes)),
        ("system", joined(&[m.os.clone(), kernel, m.architecture.clone(), m.libc.clone()])),
        ("huge pages", joined(&[m.thp.clone(), defrag])),
        ("overcommit", m.overcommit.map(|overcommit| overcommit.to_string())),
    ]
}

/// Returns the origin of the numbers: everything that is needed to reproduce them.
fn provenance(record: &LoadedRecord) -> Vec<Vec<String>> {
    let study = &record.study;
    let directory = record.trials.first().and_then(|(_, t)| t.trial.directory.clone());
    let own =
        [("directory", directory), ("lowtide", Some(study.lowtide_version.clone()))].into_iter();
    let facts = settings(study).into_iter().chain(machine(&study.machine)).chain(own);
    let fact = |name: &str, value: String| vec![name.to_owned(), value];
    let mut known: Vec<Vec<String>> =
        facts.filter_map(|(name, value)| Some(fact(name, value?))).collect();
    for summary in &study.treatments {
        let trial =
            record.trials.iter().map(|(_, t)| &t.trial).find(|t| t.treatment == summary.treatment);
        if let Some(trial) = trial {
            let set: Vec<String> =
                trial.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
            known.push(fact("environment", format!("{}: {}", summary.treatment, set.join(" "))));
        }
    }
    known
}
