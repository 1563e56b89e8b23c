// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Echo nio|threads server|client ADDRESS PORT: eight clients send and compare what comes back, some messages one at a time and
// then a lot at once; the server ends after them.
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;

public final class Echo {
    private static final int CLIENTS = 8;
    private static final int SIZE = 1 << 20;
    private static final int MESSAGES = 50;
    private static final int MESSAGE_SIZE = 100;
    private static final int PAUSE_MS = 2; // an upgrade takes the time in which both ends' services meet

    public static void main(String[] arguments) throws Exception {
        boolean nio = arguments[0].equals("nio");
        InetSocketAddress address = new InetSocketAddress(InetAddress.getByName(arguments[2]), Integer.parseInt(arguments[3]));
        if (arguments[1].equals("client")) {
            clients(address, nio);
        } else if (nio) {
            selectorServer(address);
        } else {
            threadServer(address);
        }
    }

    private static void selectorServer(InetSocketAddress address) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(address);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        for (int ended = 0; ended < CLIENTS;) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    if (channel != null) {
                        channel.configureBlocking(false);
                        channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(65536));
                    }
                } else if (echo(key)) {
                    key.channel().close();
                    ++ended;
                }
            }
            selector.selectedKeys().clear();
        }
        listener.close();
    }

    // True at the end of the stream, once all of it was sent back.
    private static boolean echo(SelectionKey key) throws Exception {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        boolean end = buffer.hasRemaining() && (key.interestOps() & SelectionKey.OP_READ) != 0 && channel.read(buffer) < 0;
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        key.interestOps(buffer.position() > 0 ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
        return end && buffer.position() == 0;
    }

    private static void threadServer(InetSocketAddress address) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(CLIENTS);
        try (ServerSocket listener = new ServerSocket()) {
            listener.bind(address);
            for (int i = 0; i < CLIENTS; ++i) {
                Socket socket = listener.accept();
                threads.submit(() -> {
                    try (socket) {
                        return socket.getInputStream().transferTo(socket.getOutputStream());
                    }
                });
            }
        }
        threads.shutdown();
    }

    private static void clients(InetSocketAddress address, boolean nio) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Boolean>> results = new ArrayList<>();
        for (int i = 0; i < CLIENTS; ++i) {
            byte[] sent = new byte[SIZE + i];
            new Random(i).nextBytes(sent);
            Callable<Boolean> client = nio ? () -> Arrays.equals(sent, channelClient(address, sent, threads))
                                           : () -> Arrays.equals(sent, socketClient(address, sent, threads));
            results.add(threads.submit(client));
        }
        int same = 0;
        for (Future<Boolean> result : results) {
            same += result.get() ? 1 : 0;
        }
        threads.shutdown();
        System.out.println(same + " clients had everything back");
    }

    private static byte[] message(int number) {
        byte[] bytes = new byte[MESSAGE_SIZE];
        Arrays.fill(bytes, (byte) number);
        return bytes;
    }

    private static void compare(int number, byte[] received) throws Exception {
        if (!Arrays.equals(message(number), received)) {
            throw new Exception("message " + number + " came back changed");
        }
        Thread.sleep(PAUSE_MS);
    }

    private static byte[] channelClient(InetSocketAddress address, byte[] data, ExecutorService threads) throws Exception {
        try (SocketChannel channel = SocketChannel.open(address)) {
            for (int number = 0; number < MESSAGES; ++number) {
                channel.write(ByteBuffer.wrap(message(number)));
                ByteBuffer answer = ByteBuffer.allocate(MESSAGE_SIZE);
                while (answer.hasRemaining() && channel.read(answer) > 0) {
                }
                compare(number, answer.array());
            }
            Future<?> sender = threads.submit(() -> {
                ByteBuffer source = ByteBuffer.wrap(data);
                while (source.hasRemaining()) {
                    channel.write(source);
                }
                return channel.shutdownOutput();
            });
            ByteBuffer received = ByteBuffer.allocate(data.length + 1);
            while (channel.read(received) > 0) {
            }
            sender.get();
            return Arrays.copyOf(received.array(), received.position());
        }
    }

    private static byte[] socketClient(InetSocketAddress address, byte[] data, ExecutorService threads) throws Exception {
        try (Socket socket = new Socket(address.getAddress(), address.getPort())) {
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(60000);
            for (int number = 0; number < MESSAGES; ++number) {
                socket.getOutputStream().write(message(number));
                compare(number, socket.getInputStream().readNBytes(MESSAGE_SIZE));
            }
            Future<?> sender = threads.submit(() -> {
                socket.getOutputStream().write(data);
                socket.shutdownOutput();
                return null;
            });
            InputStream in = socket.getInputStream();
            byte[] received = in.readAllBytes();
            sender.get();
            return received;
        }
    }
}
