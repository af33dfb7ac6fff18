// A streaming completions server that knows the truth about a load client: when each request reached the kernel, and
// when each token was written. One thread, Linux, 127.0.0.1 only. `truth_server --help` lists the options;
// bench/client/README.md has the layout of the file that it writes.
//
// Token k of a request is due at arrival + prefill + k * interval. All streams share one interval, so a request that
// was served comes up again after all those that are due before: a plain queue keeps the order, no heap is needed.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Ns = int64_t;
using std::string;
using std::string_view;

constexpr Ns kMs = 1'000'000;
constexpr Ns kSecond = 1'000'000'000;

Ns now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

struct Options {
  int port = 18000;
  Ns prefill = 100 * kMs;
  Ns interval = 20 * kMs;
  int burst = 128;
  int default_tokens = 128;
  bool aligned = false;
  int role = 0;
  int max_run_s = 600;
  string model = "stub-model";
  string word = " the";
  string out;
} options;

constexpr char kHelp[] =
    "truth_server [--port N] [--prefill-ms X] [--interval-ms X] [--burst N] [--aligned] [--role 0|1|2]\n"
    "             [--default-tokens N] [--max-run-s N] [--model NAME] [--word TEXT] [--out FILE]\n"
    "Prints 'ready' on stderr; on SIGTERM one JSON line on stdout, and the truth into FILE.\n";

// ---------------------------------------------------------------------------------------------------------------------
// The truth: one record a request, in the order of their arrival.

enum Flag : int { kChat = 1, kFinished = 2, kUsage = 4, kSocketWasFull = 8, kReusedConnection = 16 };

struct Request {
  int64_t id = 0;
  Ns accepted = 0, arrived = 0, read = 0, done = 0;
  int wanted = 0, sent = 0, connection = 0, flags = 0;
  std::unique_ptr<Ns[]> times;
};

std::deque<Request> requests;

struct Totals {
  int64_t tokens = 0, bytes = 0, sends = 0, socket_full = 0, accepted = 0, open = 0, most_open = 0;
  int64_t done = 0, aborted = 0, bad = 0;
  Ns first_request = 0, last_send = 0;
} totals;

// How late paced tokens were, in bins of 1 us up to 200 ms.
std::vector<uint32_t> lateness(200'001);

void note_lateness(Ns late) {
  const Ns bin = std::clamp<Ns>(late / 1000, 0, static_cast<Ns>(lateness.size()) - 1);
  ++lateness[static_cast<size_t>(bin)];
}

size_t lateness_us(double share) {
  uint64_t all = 0, seen = 0;
  for (uint32_t count : lateness) all += count;
  for (size_t bin = 0; bin < lateness.size(); ++bin) {
    seen += lateness[bin];
    if (seen > 0 && static_cast<double>(seen) >= share * static_cast<double>(all)) return bin;
  }
  return 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// What is sent. Every event of one kind is the same text but for the request's number, which has a fixed place.

constexpr size_t kDigits = 24;

struct Event {
  string text;
  size_t number_at = 0;

  const string& numbered(const char* digits) {
    memcpy(text.data() + number_at, digits, kDigits);
    return text;
  }
};

string http_chunk(const string& data) {
  char size[32];
  snprintf(size, sizeof size, "%zx\r\n", data.size());
  return size + data + "\r\n";
}

string answer_head(bool chat, bool stream, const char* digits) {
  const char* object = !chat ? "text_completion" : stream ? "chat.completion.chunk" : "chat.completion";
  return string("{\"id\":\"") + (chat ? "chatcmpl-" : "cmpl-") + string(digits, kDigits) + "\",\"object\":\"" + object +
         "\",\"created\":1700000000,\"model\":\"" + options.model + "\",\"choices\":[";
}

const string kNoNumber(kDigits, '0');

Event make_event(bool chat, const string& choice) {
  Event event{http_chunk("data: " + answer_head(chat, true, kNoNumber.c_str()) + choice + "]}\n\n"), 0};
  event.number_at = event.text.find(kNoNumber);
  return event;
}

struct Dialect {
  Event token, last, role;

  explicit Dialect(bool chat) {
    const string field = chat ? "\"delta\":{\"content\":\"" + options.word + "\"}" : "\"text\":\"" + options.word + "\"";
    const string end = chat ? "}" : ",\"stop_reason\":null}";
    token = make_event(chat, "{\"index\":0," + field + ",\"logprobs\":null,\"finish_reason\":null" + end);
    last = make_event(chat, "{\"index\":0," + field + ",\"logprobs\":null,\"finish_reason\":\"length\"" + end);
    role = make_event(chat,
                      "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                      "\"finish_reason\":null}");
  }
};

std::array<std::unique_ptr<Dialect>, 2> dialects;

constexpr string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nserver: truth\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

// ---------------------------------------------------------------------------------------------------------------------
// Connections and the order in which they are served.

struct Connection {
  uint32_t generation = 0;
  bool open = false, streaming = false, role_due = false, waits_for_room = false;
  Request* request = nullptr;  // the one being answered
  Dialect* dialect = nullptr;
  Ns accepted = 0, arrived = 0, due = 0;
  int served = 0, prompt_tokens = 0;
  std::array<char, kDigits> digits{};
  string input, unsent;
  size_t unsent_from = 0;
};

std::vector<Connection> connections;

int descriptor(const Connection& connection) { return static_cast<int>(&connection - connections.data()); }

struct Turn {
  Ns due;
  int fd;
  uint32_t generation;

  Connection* holder() const {
    Connection& connection = connections[static_cast<size_t>(fd)];
    return connection.generation == generation && connection.request != nullptr ? &connection : nullptr;
  }
};

Turn turn_of(const Connection& connection) { return {connection.due, descriptor(connection), connection.generation}; }

// Turns in order of their time. Additions come nearly in order, so the place is found from the back.
class Queue {
 public:
  void add(const Turn& turn) {
    auto place = turns_.end();
    while (place != turns_.begin() && std::prev(place)->due > turn.due) --place;
    if (place == turns_.end())
      turns_.push_back(turn);
    else
      turns_.insert(place, turn);
  }
  bool empty() const { return turns_.empty(); }
  Ns due() const { return turns_.empty() ? INT64_MAX : turns_.front().due; }
  Turn take() {
    const Turn turn = turns_.front();
    turns_.pop_front();
    return turn;
  }

 private:
  std::deque<Turn> turns_;
};

Queue first_tokens, later_tokens;
std::deque<Turn> unpaced;
int poller = -1;
volatile sig_atomic_t stopping = 0;

void watch(Connection& connection, bool room) {
  if (connection.waits_for_room == room) return;
  connection.waits_for_room = room;
  epoll_event wanted{};
  wanted.events = room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  wanted.data.fd = descriptor(connection);
  epoll_ctl(poller, EPOLL_CTL_MOD, wanted.data.fd, &wanted);
}

void close_connection(Connection& connection) {
  if (!connection.open) return;
  close(descriptor(connection));
  totals.aborted += connection.request != nullptr;
  --totals.open;
  const uint32_t generation = connection.generation + 1;
  connection = Connection{};
  connection.generation = generation;
}

// Sends all of the data, now or as the socket has room. False: none of it needs to be followed up at once, since the
// socket is full or the connection gone.
bool put(Connection& connection, string_view data) {
  if (!connection.open) return false;
  if (connection.waits_for_room) {
    connection.unsent.append(data);
    return false;
  }
  ssize_t taken = send(descriptor(connection), data.data(), data.size(), MSG_NOSIGNAL);
  ++totals.sends;
  if (taken < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      close_connection(connection);
      return false;
    }
    taken = 0;
  }
  totals.bytes += taken;
  if (static_cast<size_t>(taken) == data.size()) return true;
  ++totals.socket_full;
  if (connection.request) connection.request->flags |= kSocketWasFull;
  connection.unsent.assign(data.substr(static_cast<size_t>(taken)));
  connection.unsent_from = 0;
  watch(connection, true);
  return false;
}

void put_whole(Connection& connection, const char* status, const char* type, const string& body) {
  put(connection, string("HTTP/1.1 ") + status + "\r\nserver: truth\r\ncontent-type: " + type +
                      "\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

void serve_input(Connection& connection);

void note_tokens(Request& request, int count, Ns time) {
  std::fill_n(request.times.get() + request.sent, count, time);
  request.sent += count;
  totals.tokens += count;
  totals.last_send = time;
}

string usage_of(const Connection& connection) {
  const int output = connection.request->wanted;
  return "{\"prompt_tokens\":" + std::to_string(connection.prompt_tokens) +
         ",\"total_tokens\":" + std::to_string(connection.prompt_tokens + output) +
         ",\"completion_tokens\":" + std::to_string(output) + "}";
}

string stream_end(const Connection& connection) {
  string end;
  const bool chat = connection.request->flags & kChat;
  if (connection.request->flags & kUsage)
    end = http_chunk("data: " + answer_head(chat, true, connection.digits.data()) +
                     "],\"usage\":" + usage_of(connection) + "}\n\n");
  return end + http_chunk("data: [DONE]\n\n") + "0\r\n\r\n";
}

string whole_answer(const Connection& connection) {
  const bool chat = connection.request->flags & kChat;
  string text;
  for (int token = 0; token < connection.request->wanted; ++token) text += options.word;
  const string field = chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" + text + "\"}" : "\"text\":\"" + text + "\"";
  return answer_head(chat, false, connection.digits.data()) + "{\"index\":0," + field +
         ",\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":" + usage_of(connection) + "}";
}

void finish(Connection& connection, Ns time) {
  connection.request->done = time;
  connection.request->flags |= kFinished;
  connection.request = nullptr;
  ++totals.done;
  if (!connection.input.empty()) serve_input(connection);
}

// One token that is due; plans the next one.
void serve_paced(Connection& connection) {
  Request& request = *connection.request;
  const uint32_t generation = connection.generation;
  note_lateness(now() - connection.due);
  if (connection.role_due) {
    connection.role_due = false;
    put(connection, connection.dialect->role.numbered(connection.digits.data()));
    if (connection.generation != generation) return;
  }
  const bool is_last = request.sent + 1 == request.wanted;
  const Ns time = now();
  note_tokens(request, 1, time);
  if (connection.streaming) {
    Event& event = is_last ? connection.dialect->last : connection.dialect->token;
    put(connection, event.numbered(connection.digits.data()));
    if (is_last && connection.generation == generation) put(connection, stream_end(connection));
  } else if (is_last) {
    put_whole(connection, "200 OK", "application/json", whole_answer(connection));
  }
  if (connection.generation != generation) return;
  if (is_last) {
    totals.last_send = now();
    finish(connection, time);
    return;
  }
  connection.due += options.interval;
  later_tokens.add(turn_of(connection));
}

void serve_whole(Connection& connection) {
  const Ns time = now();
  const uint32_t generation = connection.generation;
  note_tokens(*connection.request, connection.request->wanted, time);
  put_whole(connection, "200 OK", "application/json", whole_answer(connection));
  if (connection.generation == generation) finish(connection, time);
}

// As many tokens as one write may hold; true if the connection wants another turn.
bool serve_unpaced(Connection& connection) {
  static string data;
  if (!connection.streaming) {
    serve_whole(connection);
    return false;
  }
  Request& request = *connection.request;
  const int count = std::min(options.burst, request.wanted - request.sent);
  const bool is_last = request.sent + count == request.wanted;
  data.clear();
  if (connection.role_due) data += connection.dialect->role.numbered(connection.digits.data());
  connection.role_due = false;
  const size_t repeats = static_cast<size_t>(count - is_last);
  if (repeats > 0) {
    // Copies double in length: far fewer calls than one a token.
    const string& event = connection.dialect->token.numbered(connection.digits.data());
    const size_t start = data.size(), end = start + repeats * event.size();
    data.resize(end);
    memcpy(data.data() + start, event.data(), event.size());
    for (size_t filled = event.size(); start + filled < end;) {
      const size_t more = std::min(filled, end - start - filled);
      memcpy(data.data() + start + filled, data.data() + start, more);
      filled += more;
    }
  }
  if (is_last) data += connection.dialect->last.numbered(connection.digits.data()) + stream_end(connection);
  const Ns time = now();
  note_tokens(request, count, time);
  const uint32_t generation = connection.generation;
  const bool has_room = put(connection, data);
  if (connection.generation != generation) return false;
  if (is_last) finish(connection, time);
  return has_room && !is_last;
}

// ---------------------------------------------------------------------------------------------------------------------
// Requests. The bodies are searched, not parsed: they come from load clients, and a parser would cost more.

string_view after_key(string_view body, string_view key) {
  const string quoted = "\"" + string(key) + "\"";
  const size_t found = body.find(quoted);
  if (found == string_view::npos) return {};
  const size_t value = body.find_first_not_of(" :\t\r\n", found + quoted.size());
  return value == string_view::npos ? string_view{} : body.substr(value);
}

int number_after(string_view body, string_view key) {
  const string_view value = after_key(body, key);
  return value.empty() || !isdigit(value[0]) ? 0 : atoi(string(value.substr(0, 9)).c_str());
}

bool true_after(string_view body, string_view key) { return after_key(body, key).substr(0, 4) == "true"; }

void begin(Connection& connection, bool chat, string_view body) {
  int wanted = number_after(body, "max_completion_tokens");
  if (wanted == 0) wanted = number_after(body, "max_tokens");
  if (wanted == 0) wanted = options.default_tokens;
  Request& request = requests.emplace_back();
  request.id = static_cast<int64_t>(requests.size()) - 1;
  request.accepted = connection.accepted;
  request.arrived = connection.arrived;
  request.read = now();
  request.wanted = wanted;
  request.connection = descriptor(connection);
  request.flags = (chat ? kChat : 0) | (true_after(body, "include_usage") ? kUsage : 0) |
                  (connection.served++ > 0 ? kReusedConnection : 0);
  request.times.reset(new Ns[static_cast<size_t>(wanted)]);
  if (totals.first_request == 0) totals.first_request = request.read;

  char digits[kDigits + 1];
  snprintf(digits, sizeof digits, "%024lld", static_cast<long long>(request.id));
  memcpy(connection.digits.data(), digits, kDigits);
  connection.request = &request;
  connection.dialect = dialects[chat].get();
  connection.prompt_tokens = static_cast<int>(body.size() / 4);
  connection.streaming = true_after(body, "stream");
  connection.role_due = connection.streaming && chat && options.role > 0;
  connection.due = request.arrived + options.prefill;
  if (options.aligned && options.interval > 0)
    connection.due = (connection.due + options.interval - 1) / options.interval * options.interval;

  const uint32_t generation = connection.generation;
  if (connection.streaming) {
    put(connection, kStreamHead);
    if (connection.generation == generation && connection.role_due && options.role == 2) {
      connection.role_due = false;
      put(connection, connection.dialect->role.numbered(connection.digits.data()));
    }
    if (connection.generation != generation) return;
  }
  if (options.interval > 0 || options.prefill > 0)
    first_tokens.add(turn_of(connection));
  else
    unpaced.push_back(turn_of(connection));
}

void answer(Connection& connection, string_view head, string_view body) {
  const size_t from = head.find(' ') + 1;
  const string_view path = head.substr(from, head.find_first_of(" ?", from) - from);
  const bool post = head.substr(0, 5) == "POST ";
  if (post && path == "/v1/completions") {
    begin(connection, false, body);
  } else if (post && path == "/v1/chat/completions") {
    begin(connection, true, body);
  } else if (path == "/v1/models") {
    put_whole(connection, "200 OK", "application/json",
              "{\"object\":\"list\",\"data\":[{\"id\":\"" + options.model +
                  "\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"truth\",\"root\":\"" + options.model +
                  "\",\"max_model_len\":131072}]}");
  } else if (path == "/health" || path == "/") {
    put_whole(connection, "200 OK", "text/plain", "ok");
  } else {
    put_whole(connection, "404 Not Found", "application/json", "{\"error\":{\"message\":\"no such page\"}}");
  }
}

// The value of a header field; empty where it is missing.
string_view field(string_view head, string_view name) {
  for (size_t at = head.find("\r\n"); at != string_view::npos; at = head.find("\r\n", at + 2)) {
    const string_view line = head.substr(at + 2);
    if (line.size() > name.size() && line[name.size()] == ':' && !strncasecmp(line.data(), name.data(), name.size()))
      return line.substr(name.size() + 1, line.find("\r\n") - name.size() - 1);
  }
  return {};
}

// Answers what has arrived whole; what follows a request that is being answered waits for its end.
void serve_input(Connection& connection) {
  constexpr size_t kLongestHead = 65536;
  while (connection.open && !connection.request && !connection.input.empty()) {
    const size_t head_end = connection.input.find("\r\n\r\n");
    const string_view head = string_view(connection.input).substr(0, head_end);
    if (head_end == string::npos ? connection.input.size() > kLongestHead : !field(head, "transfer-encoding").empty()) {
      ++totals.bad;  // chunked request bodies are not understood
      close_connection(connection);
      return;
    }
    if (head_end == string::npos) return;
    const size_t length = strtoul(string(field(head, "content-length")).c_str(), nullptr, 10);
    if (connection.input.size() < head_end + 4 + length) return;
    // The usual case, one request and nothing behind it, costs no copy.
    string rest = connection.input.substr(head_end + 4 + length);
    const string input = std::exchange(connection.input, std::move(rest));
    answer(connection, string_view(input).substr(0, head_end + 2), string_view(input).substr(head_end + 4, length));
  }
}

// When the kernel received what was read, on the monotonic clock; now where it did not say.
Ns kernel_time(msghdr& message) {
  const Ns read = now();
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec stamp;
    memcpy(&stamp, CMSG_DATA(part), sizeof stamp);
    const Ns age = now(CLOCK_REALTIME) - (stamp.tv_sec * kSecond + stamp.tv_nsec);
    if (stamp.tv_sec > 0 && age >= 0 && age < 60 * kSecond) return read - age;
  }
  return read;
}

void receive(Connection& connection) {
  static char buffer[262144];
  for (;;) {
    char control[128];
    iovec room{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &room;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t count = recvmsg(descriptor(connection), &message, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (count <= 0) {
      close_connection(connection);
      return;
    }
    connection.arrived = kernel_time(message);
    connection.input.append(buffer, static_cast<size_t>(count));
    if (static_cast<size_t>(count) < sizeof buffer) break;
  }
  serve_input(connection);
}

void send_unsent(Connection& connection) {
  const string_view left = string_view(connection.unsent).substr(connection.unsent_from);
  const ssize_t taken = send(descriptor(connection), left.data(), left.size(), MSG_NOSIGNAL);
  ++totals.sends;
  if (taken < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) close_connection(connection);
    return;
  }
  totals.bytes += taken;
  totals.last_send = now();
  connection.unsent_from += static_cast<size_t>(taken);
  if (connection.unsent_from < connection.unsent.size()) return;
  connection.unsent.clear();
  connection.unsent_from = 0;
  watch(connection, false);
  if (connection.request && options.interval == 0) unpaced.push_back(turn_of(connection));
}

void accept_all(int listener) {
  const int on = 1;
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (static_cast<size_t>(fd) >= connections.size()) {
      close(fd);
      continue;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Connection& connection = connections[static_cast<size_t>(fd)];
    ++connection.generation;
    connection.open = true;
    connection.accepted = now();
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.fd = fd;
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted);
    ++totals.accepted;
    totals.most_open = std::max(totals.most_open, ++totals.open);
  }
}

// ---------------------------------------------------------------------------------------------------------------------

// Serves some of what is due, then returns: new requests must not wait for long.
void serve_due() {
  constexpr int kMost = 256;
  for (int served = 0; served < kMost; ++served) {
    Queue& queue = first_tokens.due() <= later_tokens.due() ? first_tokens : later_tokens;
    if (queue.empty() || queue.due() > now()) break;
    const Turn turn = queue.take();
    Connection* connection = turn.holder();
    if (!connection) continue;
    if (options.interval > 0)
      serve_paced(*connection);
    else
      unpaced.push_back(turn);
  }
  for (int served = 0; served < kMost && !unpaced.empty(); ++served) {
    const Turn turn = unpaced.front();
    unpaced.pop_front();
    Connection* connection = turn.holder();
    if (!connection) continue;
    if (serve_unpaced(*connection)) unpaced.push_back(turn);
  }
}

int listen_on_loopback() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);  // connections inherit it
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(options.port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) || listen(listener, 65535)) {
    perror("truth_server: listen");
    exit(1);
  }
  return listener;
}

void run() {
  const int listener = listen_on_loopback();
  poller = epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = listener;
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted);
  fputs("ready\n", stderr);
  const Ns end = now() + options.max_run_s * kSecond;
  static epoll_event events[1024];
  while (!stopping) {
    serve_due();
    const Ns time = now();
    if (time > end) return;
    const Ns next = unpaced.empty() ? std::min(first_tokens.due(), later_tokens.due()) : time;
    timespec wait{0, std::clamp<Ns>(next - time, 0, 100 * kMs)};
    const int count = epoll_pwait2(poller, events, 1024, &wait, nullptr);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        accept_all(listener);
        continue;
      }
      Connection& connection = connections[static_cast<size_t>(fd)];
      if (connection.open && (events[i].events & EPOLLOUT)) send_unsent(connection);
      if (connection.open && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(connection);
    }
  }
}

void print_totals() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + time.tv_usec / 1e6; };
  const double cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  const double span_s = std::max<double>(0, static_cast<double>(totals.last_send - totals.first_request) / kSecond);
  const auto rate = [span_s](double count) { return span_s > 0 ? count / span_s : 0.0; };
  printf(
      "{\"requests\":%zu,\"done\":%lld,\"aborted\":%lld,\"bad\":%lld,\"chunks\":%lld,\"bytes\":%lld,\"sends\":%lld,"
      "\"eagain\":%lld,\"accepted\":%lld,\"max_open\":%lld,\"span_s\":%.6f,\"chunks_per_s\":%.1f,"
      "\"requests_per_s\":%.1f,\"server_cpu_s\":%.3f,\"server_cpu_share\":%.4f,\"late_us_p50\":%zu,"
      "\"late_us_p99\":%zu,\"late_us_max\":%zu}\n",
      requests.size(), static_cast<long long>(totals.done), static_cast<long long>(totals.aborted),
      static_cast<long long>(totals.bad), static_cast<long long>(totals.tokens), static_cast<long long>(totals.bytes),
      static_cast<long long>(totals.sends), static_cast<long long>(totals.socket_full),
      static_cast<long long>(totals.accepted), static_cast<long long>(totals.most_open), span_s,
      rate(static_cast<double>(totals.tokens)), rate(static_cast<double>(totals.done)), cpu_s, rate(cpu_s),
      lateness_us(0.5), lateness_us(0.99), lateness_us(1.0));
  fflush(stdout);
}

bool write_truth() {
  FILE* file = fopen(options.out.c_str(), "wb");
  if (!file) {
    perror(options.out.c_str());
    return false;
  }
  const Ns offset = now(CLOCK_REALTIME) - now();
  bool ok = fwrite("SSETRUE1", 1, 8, file) == 8 && fwrite(&offset, sizeof offset, 1, file) == 1;
  const auto pair = [](int low, int high) { return static_cast<int64_t>(low) | (static_cast<int64_t>(high) << 32); };
  for (const Request& request : requests) {
    const int64_t head[8] = {request.id,
                             request.accepted,
                             request.arrived,
                             request.read,
                             request.done,
                             pair(request.wanted, request.sent),
                             pair(request.connection, request.flags),
                             request.sent};
    const size_t sent = static_cast<size_t>(request.sent);
    ok = ok && fwrite(head, sizeof head, 1, file) == 1 && fwrite(request.times.get(), sizeof(Ns), sent, file) == sent;
  }
  return fclose(file) == 0 && ok;
}

void read_options(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const string name = argv[i];
    const auto value = [&]() -> const char* {
      if (i + 1 < argc) return argv[++i];
      fprintf(stderr, "truth_server: %s needs a value\n", name.c_str());
      exit(2);
    };
    const auto number = [&] { return atoi(value()); };
    const auto milliseconds = [&] { return static_cast<Ns>(atof(value()) * kMs); };
    if (name == "--help") {
      fputs(kHelp, stdout);
      exit(0);
    } else if (name == "--port") {
      options.port = number();
    } else if (name == "--prefill-ms") {
      options.prefill = milliseconds();
    } else if (name == "--interval-ms") {
      options.interval = milliseconds();
    } else if (name == "--burst") {
      options.burst = std::max(1, number());
    } else if (name == "--default-tokens") {
      options.default_tokens = std::max(1, number());
    } else if (name == "--aligned") {
      options.aligned = true;
    } else if (name == "--role") {
      options.role = number();
    } else if (name == "--max-run-s") {
      options.max_run_s = number();
    } else if (name == "--model") {
      options.model = value();
    } else if (name == "--word") {
      options.word = value();
    } else if (name == "--out") {
      options.out = value();
    } else {
      fprintf(stderr, "truth_server: unknown option %s\n%s", name.c_str(), kHelp);
      exit(2);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  struct sigaction action {};
  action.sa_handler = [](int) { stopping = 1; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  prctl(PR_SET_TIMERSLACK, 1);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  connections.resize(static_cast<size_t>(std::min<rlim_t>(files.rlim_cur, 1'000'000)));
  dialects = {std::make_unique<Dialect>(false), std::make_unique<Dialect>(true)};
  run();
  print_totals();
  return options.out.empty() || write_truth() ? 0 : 1;
}
