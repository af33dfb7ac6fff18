// The least that a load client in C++ can do on one thread: epoll, recv, the clock, and a search for events.
// A floor to compare clients with, not a client: no errors, no usage, no texts, no records.
//
//     floor PORT CONCURRENCY REQUESTS TOKENS [RATE]
//
// RATE (requests/s): Poisson arrivals, on connections opened before; else a closed loop. Prints one JSON line, in ms.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Ns = int64_t;

constexpr Ns kMs = 1'000'000;
constexpr Ns kSecond = 1'000'000'000;
constexpr std::string_view kEvent = "data: {", kEnd = "0\r\n\r\n";
constexpr size_t kCarried = kEvent.size() - 1;

Ns now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

struct Connection {
  int fd = -1;
  Ns sent = 0;
  std::vector<Ns> events;
  // The last bytes of the previous read: an event's mark may be split between two.
  char carried[kCarried] = {};
  size_t carried_size = 0;
};

void print_distribution(const char* name, std::vector<double>& values) {
  if (values.empty()) return;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (double value : values) sum += value;
  const auto quantile = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const size_t below = static_cast<size_t>(place), above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
  };
  printf(",\"%s\":{\"mean\":%.6f,\"median\":%.6f,\"p99\":%.6f}", name, sum / static_cast<double>(values.size()),
         quantile(0.5), quantile(0.99));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    fputs("floor PORT CONCURRENCY REQUESTS TOKENS [RATE]\n", stderr);
    return 2;
  }
  const int concurrency = atoi(argv[2]), wanted = atoi(argv[3]);
  const size_t tokens = static_cast<size_t>(atoi(argv[4]));
  const double rate = argc > 5 ? atof(argv[5]) : 0;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const std::string body = "{\"model\":\"stub-model\",\"prompt\":\"" + std::string(256, 'x') +
                           "\",\"max_tokens\":" + argv[4] +
                           ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true}";
  const std::string request = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" +
                              ("Content-Length: " + std::to_string(body.size())) + "\r\n\r\n" + body;

  const int poller = epoll_create1(0), on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(atoi(argv[1])));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<Connection> connections(static_cast<size_t>(concurrency));
  for (Connection& connection : connections) {
    connection.fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection.fd, reinterpret_cast<sockaddr*>(&address), sizeof address)) {
      perror("floor: connect");
      return 1;
    }
    setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection.events.reserve(tokens + 1);
    epoll_event reads{};
    reads.events = EPOLLIN;
    reads.data.ptr = &connection;
    epoll_ctl(poller, EPOLL_CTL_ADD, connection.fd, &reads);
  }

  std::vector<double> ttft, tpot, itl;
  int sent = 0, done = 0;
  const auto start = [&](Connection& connection) {
    ++sent;
    connection.events.clear();
    connection.carried_size = 0;
    connection.sent = now();
    if (send(connection.fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
      perror("floor: send");
      exit(1);
    }
  };
  const auto end = [&](const Connection& connection) {
    ++done;
    const std::vector<Ns>& events = connection.events;
    if (events.size() < tokens) return;
    const auto ms = [](Ns time) { return static_cast<double>(time) / kMs; };
    ttft.push_back(ms(events[0] - connection.sent));
    if (tokens > 1) tpot.push_back(ms(events[tokens - 1] - events[0]) / static_cast<double>(tokens - 1));
    for (size_t i = 1; i < tokens; ++i) itl.push_back(ms(events[i] - events[i - 1]));
  };

  std::vector<Connection*> idle;
  std::mt19937_64 random(1);
  std::exponential_distribution<double> gap(rate > 0 ? rate : 1);
  const Ns begin = now();
  Ns next = begin;
  for (Connection& connection : connections) {
    if (rate > 0)
      idle.push_back(&connection);
    else if (sent < wanted)
      start(connection);
  }
  static char buffer[kCarried + 262144];
  static epoll_event ready[1024];
  while (done < wanted) {
    timespec wait{10, 0};
    if (rate > 0 && sent < wanted) {
      while (sent < wanted && next <= now() && !idle.empty()) {
        start(*idle.back());
        idle.pop_back();
        next += static_cast<Ns>(gap(random) * kSecond);
      }
      const Ns left = std::max<Ns>(0, next - now());
      wait = {left / kSecond, left % kSecond};
    }
    const int count = epoll_pwait2(poller, ready, 1024, &wait, nullptr);
    for (int i = 0; i < count; ++i) {
      Connection& connection = *static_cast<Connection*>(ready[i].data.ptr);
      char* const fresh = buffer + kCarried;
      const ssize_t size = recv(connection.fd, fresh, sizeof buffer - kCarried, MSG_DONTWAIT);
      const Ns time = now();
      if (size < 0 && errno == EAGAIN) continue;
      if (size <= 0) {
        fputs("floor: the server closed a connection\n", stderr);
        return 1;
      }
      char* const from = fresh - connection.carried_size;
      memcpy(from, connection.carried, connection.carried_size);
      const std::string_view data(from, static_cast<size_t>(fresh + size - from));
      const char *at = from, *const stop = fresh + size;
      while ((at = static_cast<const char*>(memmem(at, static_cast<size_t>(stop - at), kEvent.data(), kEvent.size())))) {
        connection.events.push_back(time);
        at += kEvent.size();
      }
      if (data.size() >= kEnd.size() && data.substr(data.size() - kEnd.size()) == kEnd) {
        end(connection);
        if (rate > 0)
          idle.push_back(&connection);
        else if (sent < wanted)
          start(connection);
      } else {
        connection.carried_size = std::min(kCarried, data.size());
        memcpy(connection.carried, stop - connection.carried_size, connection.carried_size);
      }
    }
  }
  const double wall_s = static_cast<double>(now() - begin) / kSecond;
  printf("{\"completed\":%d,\"wall_s\":%.6f,\"chunks_per_s\":%.1f", done, wall_s,
         static_cast<double>(done) * static_cast<double>(tokens) / wall_s);
  print_distribution("ttft", ttft);
  print_distribution("tpot", tpot);
  print_distribution("itl", itl);
  puts("}");
  return 0;
}
