"""Schema version 1: every table, defined once. DDL, Arrow schemas and the documentation derive from here.

Times are int64 nanoseconds since the epoch on the producer's clock, durations are nanoseconds, sizes are bytes. A column that
ends in "?" in its kind may be null, and null means *not measured*. Rows arrive in time order; there are no secondary indexes.
Collectives join across ranks on (group, seq), steps on (stage, micro_batch, step), never on time.
"""

from __future__ import annotations

from traces.table import Column, Table

VERSION = 1

TABLES: dict[str, Table] = {}


def _table(number: int, name: str, doc: str, columns: str, detail: bool = False) -> Table:
    """Registers a table from lines `name kind meaning`."""
    parsed = []
    for line in columns.strip().splitlines():
        column, kind, meaning = line.split(None, 2)
        parsed.append(Column(column, kind, meaning))
    table = Table(name, number, doc, tuple(parsed), detail)
    TABLES[name] = table
    return table


RESOURCE = _table(1, "resource", "A producer: a rank, the API server, a client, a sampler.", """
    resource_id  str   name of the producer, unique in the run: rank0, api, traffic-1f3a
    ts           i64   when it registered
    host         str   host name
    rank         i32?  global rank, for ranks of an engine
    tp           i32?  tensor-parallel coordinate
    pp           i32?  pipeline stage
    dp           i32?  data-parallel coordinate
    ep           i32?  expert-parallel coordinate
    pid          i32   process id on its host
    role         str   rank | api | client | sampler | collector | foreign
    device       str   cpu, cuda:0 ...
    attrs        json  anything else
""")

SPAN = _table(2, "span", "An interval of a request or of the run's life, as an OpenTelemetry span.", """
    ts           i64   start
    dur          i64   duration, ns
    trace_id     str   32 hex digits; all spans of one request share it
    span_id      str   16 hex digits
    parent_id    str?  span_id of the parent; null for a root
    name         str   request client.request queue tokenize image.preprocess image.encode prefill decode preempted detokenize send
    kind         str   server | client | internal
    resource_id  str   producer
    status       str   ok | error | cancelled
    attrs        json  gen_ai.* and moe.* attributes; hashes and counts, never the text unless asked
""")

TOKEN = _table(3, "token", "One emitted token of a request.", """
    ts           i64   when the engine sampled it
    trace_id     str   request
    index        i32   0 for the first generated token
    step         i64   engine step that produced it
    rank         i32   rank that holds the sequence
""")

STEP = _table(4, "step", "One engine step (micro-batch) on one rank. Written for every step.", """
    step            i64   global step number, equal on all ranks
    rank            i32   rank
    stage           i32   pipeline stage
    micro_batch     i32   micro-batch
    ts              i64   start
    dur             i64   wall time of the step, ns
    cpu             i64?  CPU time of the rank's thread in the step, ns
    sync            i64   time in the step-header exchange, ns: waiting for the other ranks to be ready
    prefill_tokens  i32   prompt tokens computed by this rank; tensor-parallel ranks share the count, so that those of a stage add up
    decode_tokens   i32   decode tokens, counted alike
    context_tokens  i64   cached tokens attended to
    running         i32   sequences running in this rank's replica; 0 on all but its first rank
    waiting         i32   sequences waiting there
    kv_used         i32   KV blocks in use
    kv_total        i32   KV blocks there are
    preempted       i32   sequences preempted in this step
    graph           str?  graph mode of an engine that captures graphs
    placement       i32   expert placement version in force
    requests        str[] trace_ids in the batch
    cached_tokens   i32?  tokens of admitted sequences that the prefix cache had: not computed, not in prefill_tokens
    kv_kept         i32?  KV blocks of no sequence whose content is kept for later prompts (not in kv_used)
    long_tokens     i32?  part of prefill_tokens: of long prompts and prompts with pictures to encode, which share a budget of their own
""")

LAYER = _table(5, "layer", "One layer of a detailed step on one rank. Segments are contiguous: each starts where the one before ends.", """
    step           i64   step
    rank           i32   rank
    stage          i32   pipeline stage
    micro_batch    i32   micro-batch
    layer          i32   layer index in the model
    ts             i64   start of the layer
    attention      i64   attention segment, ns
    router         i64   router and permutation, ns
    exchange       i64   count exchange (a tiny collective), ns
    dispatch       i64   dispatch all-to-all, ns
    experts        i64   expert computation, ns
    combine        i64   combine all-to-all and weighted sum, ns
    attention_cpu  i64?  CPU time of the attention segment, ns (null on an asynchronous device)
    experts_cpu    i64?  CPU time of the expert segment, ns (null on an asynchronous device)
    tokens_in      i32   tokens of this rank that entered the layer
    tokens_routed  i32   rows this rank's experts received, from all ranks
    active         i32   local physical experts that received at least one row
    clock          str   host | device
    shared         i64?  of dispatch and combine: time in which this rank computed the shared expert, ns; null where there is none
""", detail=True)

COLLECTIVE = _table(6, "collective", "One collective on one rank.", """
    step      i64    step
    rank      i32    rank
    group     str    process group: ep, tp, world, pp0 (from stage 0 to 1), results; ep0, ep1 ... where there are several of a kind
    seq       i64    number of the collective in its group; joins ranks
    layer     i32?   layer; null outside layers
    op        str    header | exchange | dispatch | combine | attention | dense | lanes | embed | head | boundary | tokens
    enter     i64    entry
    exit      i64    exit; what a rank computed meanwhile (its shared expert) is inside
    sent      i64[]  bytes to each peer of the group
    received  i64[]  bytes from each peer of the group
    clock     str    host | device
""", detail=True)

EXPERT_LOAD = _table(7, "expert_load", "A window of steps of one layer on one rank.", """
    ts                i64    end of the window
    step_first        i64    first step
    step_last         i64    last step
    rank              i32    rank
    layer             i32    layer
    placement         i32    placement version in force (a change of version ends a window)
    steps             i32    steps with at least one token anywhere
    tokens_in         i64    tokens of this rank that entered the layer; sum(tokens) = tokens_in x top-k - dropped
    tokens            u32[]  assignments made by this rank's tokens, per logical expert
    physical          u32[]  rows computed by this rank, per local physical slot, from all ranks
    dropped           i64    assignments dropped (capacity)
    padding           i64    rows that were padding
    imbalance_p50     f64?   median over steps of max/mean rows per rank
    imbalance_p99     f64?   99th percentile over steps of max/mean rows per rank
    above_null        f64?   share of steps whose max/mean exceeds the 99th percentile of a uniform router
""")

PLACEMENT = _table(8, "placement", "A version of the expert map of one layer.", """
    placement            i32    version
    ts                   i64    when it came into force
    step                 i64    first step computed with it
    layer                i32    layer
    physical_to_logical  u32[]  logical expert of every physical slot; slots are split evenly over ranks in order
    source               str    initial | control | rebalance
    reason               str    who asked for it and why
    moved                i32    slots whose expert changed
    stall                i64    ns for which stepping stopped for the switch
    slot_hashes          str[]  hash of each slot's weights
""")

MEMORY = _table(9, "memory", "A memory sample of one process, stamped with its phase.", """
    ts                i64   time
    resource_id       str   producer
    rank              i32?  rank
    phase             str   start | plan | load | kv_cache | warmup | serve | switch ...
    rss_anon          i64   anonymous resident bytes
    rss_file          i64   file-backed resident bytes (reclaimable)
    rss_shmem         i64   shared resident bytes
    hwm               i64   VmHWM, bytes (counts reclaimable pages: never an OOM verdict by itself)
    cgroup_anon       i64?  anonymous bytes of the cgroup
    cgroup_file       i64?  page cache of the cgroup
    cgroup_limit      i64?  limit of the cgroup; null where there is none
    device_allocated  i64?  bytes allocated by the framework
    device_reserved   i64?  bytes reserved by the framework
    device_free       i64?  free bytes of the device
""")

LOAD = _table(10, "load", "A tensor or shard brought in.", """
    ts          i64   start
    dur         i64   duration, ns
    rank        i32   rank
    file        str   shard file name
    tensor      str?  tensor; null for a whole shard
    bytes_read  i64   bytes read from the file
    bytes_kept  i64   bytes kept on this rank
    retries     i32   reads repeated
    source      str   direct | buffered | cache | peer
""")

DEVICE = _table(11, "device", "A gauge sample of an accelerator.", """
    ts             i64   time
    host           str   host
    device         str   device name and index
    rank           i32?  rank that uses it
    utilisation    f64?  0..1
    memory_used    i64?  bytes
    memory_total   i64?  bytes
    clock_mhz      f64?  core clock
    power_w        f64?  power
    temperature_c  f64?  temperature
    throttle       str?  throttle reasons
    link           str?  link state
    errors         i64?  link or memory errors so far
""")

NIC = _table(12, "nic", "Counters of a network interface.", """
    ts          i64   time
    host        str   host
    interface   str   interface
    rx_bytes    i64   received bytes so far
    tx_bytes    i64   sent bytes so far
    rx_errors   i64   receive errors so far
    tx_errors   i64   send errors so far
    rx_dropped  i64   receive drops so far
    tx_dropped  i64   send drops so far
""")

HOST = _table(13, "host", "Pressure of a host, or of one process on it.", """
    ts                 i64   time
    host               str   host
    rank               i32?  rank, where the sample is of one process
    load1              f64?  load average over one minute
    cpus               i32?  CPUs usable
    psi_cpu            f64?  share of time some task waited for CPU, 10 s average, 0..1
    psi_memory         f64?  the same for memory
    psi_io             f64?  the same for I/O
    steal              f64?  share of CPU time stolen by the hypervisor since the last sample, 0..1
    throttled          i64?  ns of cgroup CPU throttling so far
    run_queue_delay    i64?  ns the process's main thread waited on a run queue so far
    involuntary        i64?  involuntary context switches of the process so far
    cpu_time           i64?  CPU ns of the process so far
    available          i64?  available memory, bytes
""")

LINK = _table(14, "link", "A fabric measurement.", """
    ts          i64   time
    src         i32   sending rank
    dst         i32   receiving rank
    size        i64   bytes
    concurrent  bool  other pairs were active
    latency     f64?  seconds
    bandwidth   f64?  bytes per second
""")

METRIC = _table(15, "metric", "A sample of a foreign metric.", """
    ts           i64    time
    resource_id  str    producer
    name         str    normalised name
    kind         str    gauge | counter | histogram
    value        f64?   value, or sum of a histogram
    count        i64?   count of a histogram
    bounds       f64[]? upper bounds of a histogram
    buckets      i64[]? cumulative counts of a histogram
    labels       json   labels
""")

LOG = _table(16, "log", "A log record.", """
    ts           i64   time
    resource_id  str   producer
    level        str   DEBUG | INFO | WARNING | ERROR | CRITICAL
    logger       str   logger
    message      str   message
    trace_id     str?  request
    attrs        json  anything else
""")

EVENT = _table(17, "event", "Something that happened.", """
    ts           i64   start
    dur          i64   duration, ns
    resource_id  str   producer
    rank         i32?  rank
    kind         str   gc | rebalance | preemption | compile | config | oom | drop | death | window | phase ...
    attrs        json  what and why
""")

TAP = _table(18, "tap", "Statistics of a tensor at a named point.", """
    ts         i64    time
    step       i64?   step
    trace_id   str?   request
    rank       i32?   rank
    layer      i32?   layer
    point      str    named point
    shape      i64[]  shape
    dtype      str    dtype
    rms        f64?   root mean square
    absmax     f64?   largest magnitude
    nonfinite  i64    non-finite elements
    sketch     f64[]  fixed random projections
""", detail=True)

STACK = _table(19, "stack", "A sampled stack of one thread.", """
    ts           i64    time
    resource_id  str    producer
    rank         i32?   rank
    thread       str    thread name
    frames       str[]  outermost first, function (file:line)
""")

ROLLUP = _table(20, "rollup", "A segment of one layer on one rank over a window: what stays when detail is sampled.", """
    ts       i64    end of the window
    rank     i32    rank
    layer    i32    layer
    segment  str    attention | router | exchange | dispatch | experts | combine
    n        i32    steps
    sum      i64    ns
    min      i64    ns
    max      i64    ns
    hist     u32[]  log2 histogram, 4 buckets per octave from 1 us: bucket i holds durations in [2^(i/4), 2^((i+1)/4)) us
""")

LEDGER = _table(21, "ledger", "One acknowledged segment of a producer. Written in the transaction of its rows.", """
    producer  str  producer
    boot      str  one life of the producer's process
    seq       i64  0, 1, 2 ... without gaps
    rows      i64  rows of all tables
    recv_ts   i64  collector's clock
""")

DROP = _table(22, "drop", "A known loss, counted.", """
    ts           i64  time
    resource_id  str  producer
    table        str  table whose rows were lost
    rows         i64  rows lost
    reason       str  ring | quota | disk | overload
""")

CLOCK_OFFSET = _table(23, "clock_offset", "Offset of a producer's clock to the collector's.", """
    ts      i64  time
    host    str  host
    offset  i64  producer minus collector, ns
    error   i64  bound of the error, ns
""")

DOCUMENT = _table(24, "document", "A JSON result: diagnosis, plan, validation, fabric, demo.", """
    ts      i64   time
    kind    str   value of the document's schema key
    body    json  the document
""")

FLIGHT = _table(25, "flight", "An operation that a rank had enqueued when its flight recorder was dumped.", """
    ts      i64    when it was enqueued
    rank    i32    rank
    group   str    process group
    seq     i64    number in its group; joins ranks for collectives, not for send and recv
    op      str    all_to_all, all_reduce, send ...
    peer    i32?   other side of a send or recv, as a rank of the group; null for collectives
    open    bool   neither completed nor retired when the rank dumped
    state   str    scheduled | started | completed, as the library says
    sizes   str[]  shapes of its inputs
    dtypes  str[]  dtypes of its inputs
    thread  str    thread that enqueued it
""")

FLIGHT_GROUP = _table(26, "flight_group", "A process group as a rank's flight recorder knows it; a rank that dumped has one at least.", """
    rank       i32    rank
    group      str    process group; empty when the rank knows of none
    meaning    str    what the engine calls it
    ranks      u32[]  its members; empty where the library does not say
    enqueued   i64?   number of the last collective enqueued
    completed  i64?   number of the last collective completed
    library    str    version of the collective library
""")

CHANNEL = _table(27, "channel", "One direction of a channel that a collective library set up, as one of its ends logged it.", """
    host       str    host that logged it
    channel    i32    number of the channel
    src        i32    rank that sends
    dst        i32    rank that receives
    direction  str    send | receive, as seen from the host; empty inside a host
    transport  str    NET | P2P | SHM | COLLNET ...
    network    str    IB, Socket, AWS Libfabric ...; how P2P or SHM is done otherwise
    nic        i32?   number of the network device on the host; null without network
    gdr        bool?  the device's memory is read by the NIC directly; null without network
""")

LIBRARY_FACT = _table(28, "library_fact", "What a collective library said of itself on a host when it started.", """
    host   str  host
    name   str  library, driver, plugin, network, bootstrap, trouble ... or env.NCCL_X
    value  str  value
""")

OPERATOR = _table(29, "operator", "An operator of a profiler window on one rank: all its calls in these steps.", """
    ts           i64   end of the window
    rank         i32   rank
    step_first   i64   first step of the window
    step_last    i64   last step of the window
    tokens       i64   tokens this rank computed in the window
    name         str   operator or kernel
    calls        i64   calls
    self_cpu     i64   CPU-side time without the operators it calls, ns
    total_cpu    i64   CPU-side time with them, ns
    self_device  i64?  device time, ns; null where there is no device
""")

BY_NUMBER: dict[int, Table] = {table.number: table for table in TABLES.values()}
