-- wrk script: what is sent, chosen by the words after `--`.
-- usage: wrk … -s order.lua URL -- SCENARIO RUN
local scenario, run, thread, count = "chat", "0", 0, 0
local threads = 0

function setup(thread)
    threads = threads + 1
    thread:set("number", threads)
end

local function text(bytes)
    return string.rep("The quick brown fox jumps over the lazy dog. ", math.ceil(bytes / 45)):sub(1, bytes)
end

local function chat(bytes)
    return '{"model":"eta-5-mini","messages":[{"role":"user","content":"' .. text(bytes) .. '"}]}'
end

local paths = {
    status = "/api/v1/video/status?request_id=vid_bench",
    health = "/healthz",
    video = "/api/v1/video",
    sse = "/v1/chat/completions",
}
local bodies = {
    chat = chat(180),
    callers = chat(180),
    unkeyed = chat(180),
    replay = chat(180),
    budget = chat(180),
    limited = chat(180),
    chat16k = chat(16 * 1024 - 70),
    video = '{"model":"video-c-2","prompt":"A lighthouse at dusk","duration":6}',
    invalid = '{"model":"no-such-model","messages":[{"role":"user","content":"' .. text(180) .. '"}]}',
    sse = '{"model":"eta-5-mini","stream":true,"messages":[{"role":"user","content":"' .. text(180) .. '"}]}',
}

function init(arguments)
    scenario, run = arguments[1] or scenario, arguments[2] or run
end

function request()
    count = count + 1
    local path = paths[scenario] or "/api/v1/chat"
    local body = bodies[scenario]
    if not body then
        return wrk.format("GET", path)
    end
    local key = run .. "-" .. number .. "-" .. count
    if scenario == "replay" then
        key = "the-same-purchase"
    end
    local headers = { ["Content-Type"] = "application/json", ["Idempotency-Key"] = key }
    if scenario == "unkeyed" then
        headers["Idempotency-Key"] = nil
        body = body:gsub("The quick", key, 1)
    end
    if scenario == "callers" then
        headers["X-Forwarded-For"] = "198.18." .. math.floor(count / 250) % 40 .. "." .. count % 250
    end
    return wrk.format("POST", path, headers, body)
end

-- The answers that are not 2xx are counted by wrk; the driver wants them by number, in one line.
function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        "RESULT requests=%d micros=%d p50=%d p99=%d status_errors=%d socket_errors=%d\n",
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), errors.status,
        errors.connect + errors.read + errors.write + errors.timeout
    ))
end
